import errno
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_proto.snapshot import (
    ALIGNMENT,
    DATA_OFFSET,
    Header,
    Meta,
    Slot,
    SlotState,
    SnapshotError,
    TensorEntry,
    align,
    allocate,
)
from tests.support.coroutines import wait_until

NBYTES = 1 << 16
WEIGHT = TensorEntry("model.weight", "float32", (2, 4), DATA_OFFSET, 32, (4, 4), (2, 0))
STEP = TensorEntry("optimizer.step", "int64", (), DATA_OFFSET + ALIGNMENT, 8, (), ())
META = Meta({"model": {"weight": 0}, "scheduler": [0.5, None, "cosine"]}, (WEIGHT, STEP))

WRITER = """
import sys
from pathlib import Path
from holdfast_proto.snapshot import DATA_OFFSET, Meta, Slot, TensorEntry

size = 1 << 14
entry = TensorEntry("t", "uint8", (size,), DATA_OFFSET, size, (size,), (0,))
with Slot(Path(sys.argv[1])) as slot:
    print("ready", flush=True)
    step = 0
    while True:
        step += 1
        slot.begin(generation=1, step=step, rank=0)
        for part in range(DATA_OFFSET, DATA_OFFSET + size, 1 << 10):
            slot.buffer[part:part + (1 << 10)] = bytes([step % 251]) * (1 << 10)
        slot.commit(Meta({"step": step}, (entry,)), data_bytes=size, persist=step % 2 == 0)
        sum(range(10_000))  # as long as a snapshot takes: to be met in both states
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rank-00003.0.slot"
    allocate(path, NBYTES)
    return path


def fill(slot: Slot, *, step: int = 7, persist: bool = False) -> None:
    slot.begin(generation=2, step=step, rank=3)
    slot.buffer[WEIGHT.offset : WEIGHT.offset + 32] = bytes(range(32))
    slot.buffer[STEP.offset : STEP.offset + 8] = step.to_bytes(8, "little")
    slot.commit(META, data_bytes=ALIGNMENT + 8, persist=persist)


def test_a_new_slot_is_empty_private_and_has_its_pages(path: Path) -> None:
    status = path.stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_size == NBYTES
    assert status.st_blocks * 512 >= NBYTES
    with Slot(path) as slot:
        assert slot.nbytes == NBYTES
        assert slot.header == Header(SlotState.EMPTY, False, 0, -1, 0, 0, 0, 0)


def test_a_committed_snapshot_reads_back_whole_through_another_mapping(path: Path) -> None:
    with Slot(path) as slot:
        fill(slot)
    with Slot(path) as slot:
        header = slot.header
        assert (header.state, header.persist) == (SlotState.COMPLETE, False)
        assert (header.generation, header.step, header.rank) == (2, 7, 3)
        assert header.data_bytes == ALIGNMENT + 8
        assert slot.meta() == META
        with slot.tensor_bytes(WEIGHT) as weight, slot.tensor_bytes(STEP) as step:
            assert bytes(weight) == bytes(range(32))
            assert int.from_bytes(step, "little") == 7


def test_meta_is_json_that_keeps_the_types_of_its_entries() -> None:
    assert json.loads(META.encode())["tensors"][0]["name"] == "model.weight"
    assert Meta.decode(META.encode()) == META


def test_from_begin_to_commit_contents_count_for_nothing(path: Path) -> None:
    with Slot(path) as slot:
        fill(slot, persist=True)
        slot.begin(generation=3, step=8, rank=3)
        assert slot.header == Header(SlotState.WRITING, False, 3, 8, 3, 0, 0, 0)
        with pytest.raises(SnapshotError, match="no complete snapshot"):
            slot.meta()


@pytest.fixture
def writer(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _let_continue(writer: "subprocess.Popen[bytes]", slot: Slot) -> None:
    step = slot.header.step
    writer.send_signal(signal.SIGCONT)
    wait_until(lambda: slot.header.step != step, "the writer continues")


def test_a_slot_whose_writer_is_interrupted_anywhere_is_complete_only_if_whole(
    path: Path, writer: "subprocess.Popen[bytes]"
) -> None:
    seen: list[SlotState] = []
    with Slot(path) as slot:
        while min(seen.count(SlotState.WRITING), seen.count(SlotState.COMPLETE)) < 5:
            assert len(seen) < 1000
            writer.send_signal(signal.SIGSTOP)
            wait_until(lambda: _is_stopped(writer.pid), "the writer stands still")
            header = slot.header
            seen.append(header.state)
            if header.state is SlotState.COMPLETE:
                meta = slot.meta()
                with slot.tensor_bytes(meta.tensors[0]) as tensor:
                    assert set(tensor) == {header.step % 251}
                assert meta.tree == {"step": header.step}
                assert header.persist == (header.step % 2 == 0)
            _let_continue(writer, slot)


def test_persist_is_handed_over_with_the_commit_and_handed_back_without_loss(path: Path) -> None:
    with Slot(path) as slot, Slot(path) as agent:
        fill(slot, persist=True)
        assert agent.header.persist
        agent.set_persist(False)
        assert not slot.header.persist
        assert slot.header.state is SlotState.COMPLETE
        assert slot.meta() == META


def test_an_invalidated_slot_is_empty_again(path: Path) -> None:
    with Slot(path) as slot:
        fill(slot)
        slot.invalidate()
        assert slot.header == Header(SlotState.EMPTY, False, 0, -1, 0, 0, 0, 0)


def test_a_meta_that_does_not_fit_leaves_the_slot_incomplete(path: Path) -> None:
    with Slot(path) as slot:
        slot.begin(generation=1, step=1, rank=0)
        with pytest.raises(SnapshotError, match=r"rank-00003\.0\.slot: \d+ bytes do not fit into 65536"):
            slot.commit(Meta({"text": "x" * NBYTES}, ()), data_bytes=0, persist=False)
        assert slot.header.state is SlotState.WRITING


def test_a_view_outlives_the_slot_it_was_taken_from(path: Path) -> None:
    slot = Slot(path)
    fill(slot)
    view = slot.tensor_bytes(WEIGHT)
    slot.close()
    assert bytes(view) == bytes(range(32))


def test_files_that_are_no_slots_are_refused_by_name(tmp_path: Path) -> None:
    short, other = tmp_path / "short", tmp_path / "other"
    short.write_bytes(b"HFSNAP\x00\x01")
    other.write_bytes(bytes(NBYTES))
    with pytest.raises(SnapshotError, match="short: 8 bytes are too few"):
        Slot(short)
    with pytest.raises(SnapshotError, match="other: not a snapshot slot"):
        Slot(other)


def test_a_slot_that_exists_is_not_created_again(path: Path) -> None:
    with Slot(path) as slot:
        fill(slot)
    with pytest.raises(FileExistsError):
        allocate(path, NBYTES)
    with Slot(path) as slot:
        assert slot.header.step == 7


def test_without_room_the_error_says_so_and_nothing_is_left() -> None:
    memory = os.statvfs("/dev/shm")
    path = Path(f"/dev/shm/holdfast-test-{uuid.uuid4().hex}")
    with pytest.raises(OSError) as caught:
        allocate(path, (memory.f_blocks + 1) * memory.f_frsize)
    assert caught.value.errno == errno.ENOSPC
    assert not path.exists()


@pytest.mark.parametrize(("offset", "aligned"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_tensors_start_at_multiples_of_the_alignment(offset: int, aligned: int) -> None:
    assert align(offset) == aligned
