from pathlib import Path

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format.slot_tensors import SlotFile, TensorBytes
from holdfast_proto.snapshot import TensorEntry

BYTES = bytes(range(200)) * 20_000
"""More bytes than one read takes."""
ENTRY = TensorEntry("weight", "uint8", (len(BYTES),), 4096, len(BYTES), (len(BYTES),), (0,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "slot"
    path.write_bytes(bytes(ENTRY.offset + ENTRY.nbytes))
    return path


def test_what_was_placed_in_parts_is_read_in_any_others(path: Path) -> None:
    with SlotFile(path) as slot:
        slot.place(ENTRY, (memoryview(BYTES[start : start + 777_777]) for start in range(0, len(BYTES), 777_777)))
        tensor = TensorBytes(slot, ENTRY)
        assert len(tensor) == len(BYTES)
        assert tensor[:] == BYTES
        assert tensor[5:9] == BYTES[5:9]
        assert tensor[len(BYTES) - 3 : len(BYTES) + 100] == BYTES[-3:]
        assert not tensor[len(BYTES) :]
    assert path.read_bytes() == bytes(ENTRY.offset) + BYTES


def test_a_slot_that_is_too_short_fails_the_checkpoint_with_its_name(path: Path) -> None:
    with SlotFile(path) as slot, path.open("r+b") as file:
        file.truncate(ENTRY.offset + 10)
        tensor = TensorBytes(slot, ENTRY)
        assert tensor[:10] == bytes(10)
        with pytest.raises(CheckpointError, match=f"snapshot slot {path} ends before its last tensor does"):
            tensor[8:12]
