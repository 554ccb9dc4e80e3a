"""What the integrations depend on in other projects: a release without one of these names is found here."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast_proto.rank_context import VARIABLE, RankContext
from tests.support.keeping_hooks import KeepingHooks
from tests.support.programs import framework

pytestmark = pytest.mark.frameworks
transformers = framework("transformers")
accelerate = framework("accelerate")


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
    assert [getattr(accelerator, name) for name in ACCELERATOR_LISTS] == [[], [], [], []]
    assert isinstance(accelerator.step, int)
    assert accelerator.sync_gradients


def test_events_that_the_callback_answers_are_events_of_the_trainer() -> None:
    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    own = {name for name in vars(HoldfastCallback) if name.startswith("on_")}
    assert own
    assert own <= set(dir(transformers.TrainerCallback))


@pytest.fixture
def lacks_a_method(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that sets a context and has this transformers lack a method."""
    from holdfast_hooks.frameworks import huggingface

    def lack(observed: bool) -> None:
        context = RankContext(run="a", generation=1, agent="unix:/none", black_box="/none", observed=observed)
        monkeypatch.setenv(VARIABLE, context.to_environment()[VARIABLE])
        monkeypatch.delattr(transformers.Trainer, "_holdfast_original", raising=False)
        monkeypatch.setattr(huggingface, "TRAINER_METHODS", ("_gone",))
        monkeypatch.setattr(huggingface, "_has_trained", False)

    return lack


def test_a_trainer_without_a_method_is_refused_by_run(lacks_a_method: Callable[[bool], None]) -> None:
    from holdfast_hooks import ConfigurationError
    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    lacks_a_method(False)
    with pytest.raises(ConfigurationError, match=r"transformers \d.* has no Trainer._gone.*docs/frameworks.md names"):
        HoldfastCallback()


def test_a_trainer_without_a_method_is_observed_by_the_events_of_callbacks(
    lacks_a_method: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    import holdfast_hooks
    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.layer(x)[:, 0] - labels).square().mean()}

    lacks_a_method(True)
    hooks = KeepingHooks({}, [], 4)
    monkeypatch.setattr(holdfast_hooks, "attach", lambda **_: hooks)
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=9,
        gradient_accumulation_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = [{"x": torch.randn(2), "labels": torch.tensor(1.0)} for _ in range(64)]
    callback = HoldfastCallback()
    assert caplog.text.count("watched by the events of its callbacks alone") == 1
    trainer = transformers.Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    trainer.train()
    assert not hasattr(transformers.Trainer, "_holdfast_original")
    # The hooks ask to stop at the end of step 4, which they learn when step 5 begins. The Trainer then leaves step 5.
    assert trainer.state.global_step == 5
    assert [one["step"] for one in hooks.saved] == [0, 1, 2, 3, 4]
    trained = [line for line in hooks.reported if line.get("loss") is not None]
    assert [line["step"] for line in trained] == [0, 1, 2, 3, 4]
    evaluated = [line for line in hooks.reported if "validation_loss" in line]
    assert [line["step"] for line in evaluated] == [1, 3]
