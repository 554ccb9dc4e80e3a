"""Weights from files: each rank of a layout loads its own part, and all compute what one plain process computes."""

from pathlib import Path

import pytest
import torch

from holdfast_trainer.config import build
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.parallel.parallelize import load_weights
from holdfast_trainer.weights.llama_tensors import llama_tensors
from holdfast_trainer.weights.weight_folder import find_weights
from tests.support.llama_folders import llama_weights, write_llama
from tests.trainer.conftest import RunRanks
from tests.trainer.layouts import OPTIMIZER
from tests.trainer.world_of_one import whole_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_has_the_values_of_its_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = write_llama(tmp_path / "llama", files=2, dtype=dtype)
    model = build([f"--model.init_from={folder}"], {}).model
    whole = whole_model(model)
    whole.allocate(torch.device("cpu"))
    load_weights(ModelParts((), (whole,)), find_weights(folder, model))
    expected, names = llama_weights(whole.config, dtype), llama_tensors(whole.config)
    found = dict(whole.named_parameters())
    assert found.keys() == names.keys()
    for name, parameter in found.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, expected[names[name].name].float())


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
    model = {"init_from": str(folder)}
    run_ranks("sweep", ranks=ranks, model=model, parallel=parallel, train={"global_batch": 12}, optimizer=OPTIMIZER)


@pytest.mark.system
def test_tied_weights_start_in_a_pipeline_once_they_are_untied(run_ranks: RunRanks, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", tied=True)
    model = {"init_from": str(folder), "tied": False}
    run_ranks("sweep", ranks=2, model=model, parallel={"pp": 2, "microbatches": 2}, optimizer=OPTIMIZER)
