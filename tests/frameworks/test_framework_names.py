"""What the integrations depend on in other projects: a release without one of these names is found here."""

import dataclasses

import pytest

from holdfast_proto.rank_context import VARIABLE, RankContext

pytestmark = pytest.mark.frameworks
transformers = pytest.importorskip("transformers", reason="needs transformers: run `make test-frameworks`")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate: run `make test-frameworks`")


def test_trainer_has_the_methods_that_are_wrapped() -> None:
    from holdfast_hooks.frameworks.trainer_steps import TRAINER_METHODS

    assert [name for name in TRAINER_METHODS if not callable(getattr(transformers.Trainer, name, None))] == []


def test_the_state_of_a_trainer_has_no_field_that_nobody_has_decided_about() -> None:
    from holdfast_hooks.frameworks.trainer_position import KEPT_FIELDS

    from_arguments = {
        "max_steps",
        "logging_steps",
        "eval_steps",
        "save_steps",
        "train_batch_size",
        "num_train_epochs",
        "is_local_process_zero",
        "is_world_process_zero",
        "is_hyper_param_search",
        "trial_name",
        "trial_params",
    }
    fields = {field.name for field in dataclasses.fields(transformers.TrainerState)}
    assert fields == {*KEPT_FIELDS, "log_history", "stateful_callbacks"} | from_arguments


def test_an_accelerator_lists_what_it_has_prepared() -> None:
    from holdfast_hooks.frameworks.accelerate import ACCELERATOR_LISTS

    accelerator = accelerate.Accelerator(cpu=True)
    assert [getattr(accelerator, name) for name in ACCELERATOR_LISTS] == [[], [], []]
    assert isinstance(accelerator.step, int)
    assert accelerator.sync_gradients


def test_events_that_the_callback_answers_are_events_of_the_trainer() -> None:
    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    own = {name for name in vars(HoldfastCallback) if name.startswith("on_")}
    assert own
    assert own <= set(dir(transformers.TrainerCallback))


@pytest.mark.parametrize("observed", [True, False])
def test_a_trainer_without_a_method_is_refused_by_run_and_left_alone_by_observe(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, observed: bool
) -> None:
    from holdfast_hooks import ConfigurationError
    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    context = RankContext(run="a", generation=1, agent="unix:/none", black_box="/none", observed=observed)
    monkeypatch.setenv(VARIABLE, context.to_environment()[VARIABLE])
    monkeypatch.delattr(transformers.Trainer, "_holdfast_original", raising=False)
    monkeypatch.delattr(transformers.Trainer, "_load_scaler")
    if not observed:
        with pytest.raises(ConfigurationError, match="_load_scaler"):
            HoldfastCallback()
        return
    HoldfastCallback()
    assert "no Trainer._load_scaler, which HoldfastCallback depends on: this training is not watched" in caplog.text
    assert not hasattr(transformers.Trainer, "_holdfast_original")
