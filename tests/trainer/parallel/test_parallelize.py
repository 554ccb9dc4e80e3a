"""Weights from files: each rank of a layout loads its own part, and all compute what one plain process computes."""

from pathlib import Path

import pytest
import torch

from holdfast_trainer.config import build
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.parallel.parallelize import load_weights
from holdfast_trainer.weights.llama_tensors import llama_tensors
from holdfast_trainer.weights.weight_folder import find_weights
from tests.support.llama_folders import llama_weights, write_llama
from tests.trainer.conftest import RunRanks
from tests.trainer.layouts import OPTIMIZER


def loaded(folder: Path, *flags: str) -> Transformer:
    model = build([f"--model.init_from={folder}", *flags], {}).model
    whole = Transformer(model, positions=torch.arange(16), layers=range(model.layers), first=True, last=True)
    whole.allocate(torch.device("cpu"))
    load_weights(ModelParts((), (whole,)), find_weights(folder, model))
    return whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_has_the_values_of_its_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = loaded(write_llama(tmp_path / "llama", files=2, dtype=dtype))
    expected, names = llama_weights(whole.config, dtype), llama_tensors(whole.config)
    found = dict(whole.named_parameters())
    assert found.keys() == names.keys()
    for name, parameter in found.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, expected[names[name].name].float())


def test_an_untied_head_is_a_copy_of_the_embedding(tmp_path: Path) -> None:
    whole = loaded(write_llama(tmp_path / "llama", tied=True), "--model.tied=false")
    assert whole.head is not None
    assert whole.embedding is not None
    assert torch.equal(whole.head.weight, whole.embedding.weight)
    assert whole.head.weight is not whole.embedding.weight


@pytest.mark.system
@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [
        (1, {}),
        (2, {"tp": 2}),
        (2, {"pp": 2, "microbatches": 2}),
        (2, {"dp": 2, "zero": 0}),
        (2, {"dp": 2, "zero": 3}),
        (2, {"cp": 2}),
        (4, {"dp": 2, "tp": 2}),
        (3, {"dp": 3}),
        (6, {"dp": 3, "tp": 2}),
        (4, {"pp": 2, "tp": 2, "schedule": "zero-bubble", "microbatches": 4}),
    ],
)
def test_layouts_start_from_the_same_weights(
    run_ranks: RunRanks, tmp_path: Path, ranks: int, parallel: dict[str, object]
) -> None:
    folder = write_llama(tmp_path / "llama", files=3, rope_scaling="llama3", rope_sequence=8)
    run_ranks(
        "sweep",
        ranks=ranks,
        model={"init_from": str(folder)},
        parallel=parallel,
        data={"sequence": 16},
        train={"global_batch": 12},
        optimizer=OPTIMIZER,
    )


@pytest.mark.system
def test_tied_weights_start_in_a_pipeline_once_they_are_untied(run_ranks: RunRanks, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", tied=True)
    run_ranks(
        "sweep",
        ranks=2,
        model={"init_from": str(folder), "tied": False},
        parallel={"pp": 2, "microbatches": 2},
        data={"sequence": 16},
        train={"global_batch": 12},
        optimizer=OPTIMIZER,
    )
