from pathlib import Path

import pytest
import torch

from holdfast_hooks.snapshots import slot_reads
from holdfast_hooks.snapshots.slot_reads import fill
from holdfast_proto.snapshot import SnapshotError, TensorEntry


def entries(tensors: list[torch.Tensor]) -> list[TensorEntry]:
    found, offset = [], 4096
    for tensor in tensors:
        shape = tuple(tensor.shape)
        found.append(TensorEntry("x", "float32", shape, offset, tensor.nbytes, shape, (0,) * len(shape)))
        offset += tensor.nbytes + 64
    return found


def test_tensors_of_all_sizes_are_filled(tmp_path: Path) -> None:
    large = slot_reads._READ_BYTES // 4
    stored = [torch.randn(size) for size in (1, 2 * large + 5, 7, large, 3)]
    path = tmp_path / "slot"
    path.write_bytes(bytes(4096) + b"".join(tensor.numpy().tobytes() + bytes(64) for tensor in stored))
    filled = [torch.empty_like(tensor) for tensor in stored]
    fill(path, zip(entries(stored), filled, strict=True))
    assert all(map(torch.equal, filled, stored))


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "slot"
    path.write_bytes(bytes(4096 + 10))
    tensor = torch.empty(3)
    with pytest.raises(SnapshotError, match="ends before its last tensor"):
        fill(path, zip(entries([tensor]), [tensor], strict=True))


def test_no_tensors_are_filled_from_any_file(tmp_path: Path) -> None:
    path = tmp_path / "slot"
    path.touch()
    fill(path, [])
