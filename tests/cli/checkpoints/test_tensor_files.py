"""Files of tensors that others wrote or read, without a run."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import Result

from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_cli.checkpoints.tensor_file import TensorForm, create
from tests.cli.conftest import checkpoint


def assert_refused(source: Path, into: Path, reason: str) -> None:
    """Import a file, which is refused in one line."""
    result = import_as_step_1(source, into)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"{source}{reason}" in result.stderr


def import_as_step_1(source: Path, into: Path) -> Result:
    return checkpoint("import", source, "--into", into, "--step", 1, "--run", "r")


def write(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_what_is_written_to_the_tensors_of_a_new_file_is_read_by_the_formats_own_package(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    values = {
        "flag": torch.tensor([True, False, True]),
        "none": torch.empty(0, 2),
        "scale": torch.tensor(2.5, dtype=torch.float64),
        "weight": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    }
    forms = [TensorForm(name, str(one.dtype).removeprefix("torch."), one.shape) for name, one in values.items()]
    for name, tensor in create(path, forms, {"format": "pt"}).items():
        tensor.copy_(values[name])
    found = load_file(path)
    assert found.keys() == values.keys()
    for name, tensor in found.items():
        assert tensor.dtype == values[name].dtype and torch.equal(tensor, values[name])


def test_weights_of_strangers_become_the_model_of_a_run(tmp_path: Path) -> None:
    source = tmp_path / "weights.pt"
    torch.save({"weight": torch.arange(6.0).view(2, 3), "bias": torch.zeros(0)}, source)
    assert checkpoint("import", source, "--into", tmp_path, "--step", 0, "--run", "new").exit_code == 0
    target = tmp_path / "again.safetensors"
    assert checkpoint("export", 0, "--checkpoints", tmp_path, "--to", target).exit_code == 0
    tensors = load_file(target)
    assert torch.equal(tensors["weight"], torch.arange(6.0).view(2, 3))
    assert tensors["bias"].shape == (0,)
    assert load_manifest(tmp_path / "step-00000000").run == "new"


def test_scales_of_fp8_tensors_come_out_as_they_went_in(tmp_path: Path) -> None:
    source, target = tmp_path / "weights.safetensors", tmp_path / "again.safetensors"
    write(source, {"scale": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [0, 2]}}, b"\x7f\x80")
    assert import_as_step_1(source, tmp_path).exit_code == 0
    assert checkpoint("export", "--checkpoints", tmp_path, "--to", target).exit_code == 0
    found = load_file(target)["scale"]
    assert found.dtype == torch.float8_e8m0fnu
    assert found.float().tolist() == [1.0, 2.0]


def test_a_dtype_that_safetensors_lacks_goes_through_pt_only(tmp_path: Path) -> None:
    source, target = tmp_path / "weights.pt", tmp_path / "again.pt"
    weight = torch.complex(torch.arange(3.0).double(), torch.ones(3).double())
    torch.save({"phase": weight, "scale": torch.tensor(2.5)}, source)
    assert checkpoint("import", source, "--into", tmp_path, "--step", 0, "--run", "new").exit_code == 0
    assert checkpoint("export", "--checkpoints", tmp_path, "--to", target).exit_code == 0
    found = torch.load(target, weights_only=True)
    assert torch.equal(found["phase"], weight)
    assert found["scale"].item() == 2.5
    refused = checkpoint("export", "--checkpoints", tmp_path, "--to", tmp_path / "x.safetensors")
    assert "phase: safetensors has no dtype complex128: export to a .pt file instead" in refused.stderr
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_file_that_is_something_else_is_refused(ending: str, tmp_path: Path) -> None:
    source = tmp_path / f"x.{ending}"
    for contents in (b"", b"not tensors, but long enough for a header", b"\x02\0\0\0\0\0\0\0[]"):
        source.write_bytes(contents)
        assert_refused(source, tmp_path, " ")


@pytest.mark.parametrize(
    ("header", "nbytes"),
    [
        pytest.param({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 7, id="cut off"),
        pytest.param({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 9, id="too long"),
        pytest.param({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, 8, id="wrong shape"),
        pytest.param({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, 12, id="gap"),
        pytest.param({"a": {"dtype": "Q9", "shape": [2], "data_offsets": [0, 8]}}, 8, id="unknown dtype"),
    ],
)
def test_a_damaged_safetensors_file_is_refused(header: dict[str, Any], nbytes: int, tmp_path: Path) -> None:
    source = tmp_path / "x.safetensors"
    write(source, header, bytes(nbytes))
    assert_refused(source, tmp_path, " is not a safetensors file: ")
    assert import_as_step_1(source, tmp_path).stderr.endswith(": export it again\n")


@pytest.mark.skipif(
    Path("/proc/sys/vm/overcommit_memory").read_text() != "0\n", reason="the kernel refuses no large mappings"
)
def test_a_file_too_large_to_be_mapped_is_refused_with_the_fix(tmp_path: Path) -> None:
    source = tmp_path / "x.safetensors"
    nbytes = 4 * (psutil.virtual_memory().total + psutil.swap_memory().total)
    write(source, {"a": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}, b"")
    os.truncate(source, source.stat().st_size + nbytes)
    assert_refused(source, tmp_path, " cannot be mapped (")
    assert ": set vm.overcommit_memory to 1" in import_as_step_1(source, tmp_path).stderr


def test_a_file_that_cannot_be_opened_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    missing = tmp_path / "missing.safetensors"
    for source, reason in ((folder, "Is a directory"), (missing, "No such file or directory")):
        assert_refused(source, tmp_path, f": {reason}: name a file that you can read")


def test_metadata_that_names_other_tensors_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "x.safetensors"
    create(source, [TensorForm("a", "float32", (2,))], {"holdfast_tree": "{}"})
    assert_refused(source, tmp_path, " holds other tensors than its metadata says")
