"""The names of Lightning that Holdfast needs, most of them private."""

import importlib

import pytest

import holdfast_lightning
from holdfast_proto import rank_context

pytest.importorskip("lightning", reason="needs lightning: run `make test-frameworks`")

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
