"""The names of Lightning that Holdfast needs, most of them private."""

import importlib
from pathlib import Path

import pytest

import holdfast_lightning
from holdfast_proto import rank_context
from tests.support.programs import framework

framework("lightning")

pytestmark = pytest.mark.frameworks


def test_the_entry_point_knows_the_variable() -> None:
    assert holdfast_lightning.VARIABLE == rank_context.VARIABLE


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_lightning_has_every_name_that_the_callback_needs(package: str) -> None:
    from holdfast_hooks.frameworks.lightning_loops import missing_names

    trainer = importlib.import_module(package).Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    assert missing_names(trainer) == []
    del trainer.fit_loop.epoch_loop._results
    assert missing_names(trainer) == ["trainer.fit_loop.epoch_loop._results"]


@pytest.mark.parametrize("observed", [False, True])
def test_another_lightning_is_refused_but_never_ends_an_observed_fit(
    observed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lightning.pytorch import Trainer

    from holdfast_hooks.frameworks import lightning
    from holdfast_hooks.hook_errors import ConfigurationError

    monkeypatch.setattr(lightning, "_is_used", False)
    context = rank_context.RankContext(
        run="r", generation=1, agent=f"unix:{tmp_path}/none", black_box=str(tmp_path / "box"), observed=observed
    )
    for name, value in context.to_environment().items():
        monkeypatch.setenv(name, value)
    trainer = Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    del trainer.fit_loop.epoch_loop._results
    flaw = "this version of Lightning has no trainer.fit_loop.epoch_loop._results: use lightning 2.6"
    if observed:
        lightning.LightningHoldfast().on_fit_start(trainer)
        assert flaw in caplog.text
    else:
        with pytest.raises(ConfigurationError, match=flaw):
            lightning.LightningHoldfast().on_fit_start(trainer)
