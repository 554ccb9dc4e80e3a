import errno
import fcntl
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.codec import byte_planes
from holdfast_checkpoint.codec.chunk import encode_chunk
from holdfast_checkpoint.format import durable, shard_file, slot_shard
from holdfast_checkpoint.format.durable import NewFile, write_file
from holdfast_checkpoint.format.manifest import MANIFEST
from holdfast_checkpoint.format.shard_file import DirectFile
from holdfast_checkpoint.format.shard_index import ShardIndex, index_path, load_index, shard_path, slot_bytes_needed
from holdfast_checkpoint.format.shard_writer import read_back
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import Slot, SlotState, SnapshotError
from tests.checkpoint.conftest import SavedFolder, contents
from tests.support.snapshots import Snapshots

MIB = 1 << 20

NOBODY = 65534


def test_shard_comes_back_as_the_same_snapshot(checkpoints: SavedFolder) -> None:
    tree = {"nested": [1, True, None, 0.1, "é"], "tensors": {"weight": 0}}
    checkpoints.save(40, tree=tree, generation=3)
    directory = checkpoints.step_directory(40)
    target = checkpoints.snapshots.empty(slot_bytes_needed(load_index(directory, 1)))

    read_shard(directory, 1, target, generation=7)

    assert contents(target) == checkpoints.snapshots.tensors(rank=1, step=40, generation=3)
    with Slot(target) as slot, Slot(checkpoints.snapshots.slot(1, 40, tree=tree, generation=3)) as source:
        assert (slot.meta(), slot.nbytes) == (source.meta(), source.nbytes)
        header = slot.header
    assert (header.state, header.persist) == (SlotState.COMPLETE, False)
    assert (header.generation, header.step, header.rank) == (7, 40, 1)


def test_same_snapshot_is_written_as_the_same_bytes(snapshots: Snapshots, tmp_path: Path) -> None:
    slot = snapshots.slot(0, 5)
    first = write_shard(slot, tmp_path / "a", run="run", world_size=1)
    second = write_shard(slot, tmp_path / "b", run="run", world_size=1)
    assert first == second
    for path in (shard_path, index_path):
        assert path(tmp_path / "a", 0).read_bytes() == path(tmp_path / "b", 0).read_bytes()


def test_tensors_that_are_not_to_be_compressed_are_stored_raw(checkpoints: SavedFolder) -> None:
    tensors = {"first": bytes(3 * MIB), "second": bytes(3 * MIB), "nothing": b"", "third": bytes(8)}
    answers = iter([True, False, False, True])
    directory = checkpoints.step_directory(1)
    slot = checkpoints.snapshots.slot(0, 1, tensors=tensors)
    index = write_shard(slot, directory, run="run", world_size=1, compress=lambda: next(answers))
    assert [tensor.codec for tensor in index.tensors] == ["byte-planes", "raw", "raw", "byte-planes"]
    assert index.tensors[1].stored_bytes == 3 * MIB
    assert checkpoints.commit_if_complete(1, 1, "run") is not None
    target = checkpoints.snapshots.empty(slot_bytes_needed(index))
    read_shard(directory, 0, target, generation=1)
    assert contents(target) == tensors
    assert checkpoints.verify(1).step == 1


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", ["rank-00000.shard", "rank-00000.json", MANIFEST])
def test_every_flipped_byte_is_found(name: str, compress: bool, checkpoints: SavedFolder) -> None:
    directory = checkpoints.step_directory(1)
    write_shard(checkpoints.snapshots.slot(0, 1), directory, run="run", world_size=1, compress=lambda: compress)
    assert checkpoints.commit_if_complete(1, 1, "run") is not None
    target = checkpoints.snapshots.fill(checkpoints.snapshots.empty(), 0, 99)
    path = directory / name
    good = path.read_bytes()
    generator = random.Random(3)
    for position in range(len(good)):
        flipped = good[position] ^ generator.randrange(1, 256)
        path.write_bytes(good[:position] + bytes([flipped]) + good[position + 1 :])
        with pytest.raises(CheckpointUnreadable, match=str(directory)):
            read_shard(directory, 0, target, generation=1)
    with Slot(target) as slot:
        # The manifest and the index are checked before the slot is touched.
        assert slot.header.state is (SlotState.EMPTY if name.endswith(".shard") else SlotState.COMPLETE)
    path.write_bytes(good)
    read_shard(directory, 0, target, generation=1)


@pytest.mark.parametrize("change", [-300, -1, 1, 300])
def test_shard_of_another_length_is_found(change: int, checkpoints: SavedFolder) -> None:
    checkpoints.save(1, world_size=1)
    path = shard_path(checkpoints.step_directory(1), 0)
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(CheckpointUnreadable, match=r"rank-00000\.shard"):
        read_shard(path.parent, 0, checkpoints.snapshots.empty(), generation=1)


def test_sound_index_of_another_save_is_refused(checkpoints: SavedFolder) -> None:
    checkpoints.save(1, generation=1)
    other = CheckpointDirectory(checkpoints.path.parent / "other", kept=1)
    checkpoints.snapshots.commit(other, 1, generation=2)
    for path in (shard_path, index_path):
        path(other.step_directory(1), 0).rename(path(checkpoints.step_directory(1), 0))
    with pytest.raises(CheckpointUnreadable, match="index of rank 0 is not the one that was committed"):
        read_shard(checkpoints.step_directory(1), 0, checkpoints.snapshots.empty(), generation=1)


def test_missing_files_and_ranks_are_named(checkpoints: SavedFolder) -> None:
    checkpoints.save(1)
    directory = checkpoints.step_directory(1)
    with pytest.raises(CheckpointUnreadable, match="no shard of rank 2: its world has 2 ranks"):
        read_shard(directory, 2, checkpoints.snapshots.empty(), generation=1)
    shard_path(directory, 1).unlink()
    with pytest.raises(CheckpointUnavailable, match=r"rank-00001\.shard: No such file"):
        read_shard(directory, 1, checkpoints.snapshots.empty(), generation=1)


def test_slot_that_is_too_small_is_refused_and_left_empty(checkpoints: SavedFolder) -> None:
    checkpoints.save(1, world_size=1, tensors={"weight": bytes(100_000)})
    target = checkpoints.snapshots.empty(50_000)
    with pytest.raises(SnapshotError, match="too few for tensor weight"):
        read_shard(checkpoints.step_directory(1), 0, target, generation=1)
    with Slot(target) as slot:
        assert slot.header.state is SlotState.EMPTY


def test_incomplete_slot_is_not_written(snapshots: Snapshots, tmp_path: Path) -> None:
    slot = snapshots.empty()
    with pytest.raises(CheckpointError, match="holds no complete snapshot"):
        write_shard(slot, tmp_path / "step", run="run", world_size=1)
    slot.unlink()
    with pytest.raises(CheckpointError, match=r"slot .* cannot be read"):
        write_shard(slot, tmp_path / "step", run="run", world_size=1)
    assert not (tmp_path / "step").exists()


def test_slot_that_changes_during_the_write_is_not_written(
    snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = snapshots.slot(0, 5)

    def begin_again(file: NewFile, index: ShardIndex) -> None:
        with Slot(path) as slot:
            slot.begin(generation=1, step=6, rank=0)
        read_back(file, index)

    monkeypatch.setattr(slot_shard, "read_back", begin_again)
    with pytest.raises(CheckpointError, match="changed while the checkpoint was written"):
        write_shard(path, tmp_path / "step", run="run", world_size=1)
    assert list((tmp_path / "step").iterdir()) == []


@pytest.mark.parametrize("refusal", ["", "open", "preadv"])
@pytest.mark.parametrize("nbytes", [0, 1, 4096, MIB, MIB + 4097, 5 * MIB + 4096, 5 * MIB + 3])
def test_file_is_read_from_the_disk_whatever_its_size_and_file_system(
    nbytes: int, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``refusal``: the call that reports that the file system has no direct reads."""
    dice = random.Random(nbytes)
    content = dice.randbytes(nbytes)
    write_file(tmp_path / "file", content)
    refused: list[str] = []

    def open_file(path: Path, flags: int) -> int:
        refuse("open", is_direct=bool(flags & os.O_DIRECT))
        return os.open(path, flags)

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        refuse("preadv", is_direct=bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return os.preadv(descriptor, buffers, offset)

    def refuse(call: str, *, is_direct: bool) -> None:
        if call == refusal and is_direct:
            refused.append(call)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    calls = SimpleNamespace(**vars(os) | {"open": open_file, "preadv": preadv})
    monkeypatch.setattr(shard_file, "os", calls)
    with DirectFile(tmp_path / "file") as file:
        assert file.read(nbytes + 1) == content
        for _ in range(40):
            start, size = dice.randrange(nbytes + 1), dice.choice([1, 100, 300_000, 2 * MIB])
            file.seek(start)
            assert file.read(size) == content[start : start + size]
            assert file.read(50) == content[start + size : start + size + 50]
    assert refused == ([refusal] if refusal else [])


@pytest.mark.parametrize("is_flag_refused", [True, False])
def test_file_system_without_direct_writes_gets_the_same_file(
    is_flag_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct: list[bool] = []

    def is_direct(descriptor: int) -> bool:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def refuse(descriptor: int, data: memoryview) -> int:
        direct.append(is_direct(descriptor))
        if direct[-1]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.write(descriptor, data[: len(data) // 2 + 1])  # it takes only a part, as kernels may

    def control(descriptor: int, command: int, flags: int = 0) -> int:
        if is_flag_refused and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return fcntl.fcntl(descriptor, command, flags)

    content = random.Random(0).randbytes(5 * MIB + 3)
    with monkeypatch.context() as patched:
        patched.setattr(durable, "os", SimpleNamespace(**vars(os) | {"write": refuse}))
        patched.setattr(durable, "fcntl", SimpleNamespace(**vars(fcntl) | {"fcntl": control}))
        write_file(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == content
    assert direct.count(True) == (0 if is_flag_refused else 1)


def test_tensor_that_does_not_decode_again_is_not_written(
    snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode_badly(*arguments: Any) -> bytes:
        stored = bytearray(encode_chunk(*arguments))
        stored[-1] ^= 1
        return bytes(stored)

    monkeypatch.setattr(byte_planes, "encode_chunk", encode_badly)
    with pytest.raises(CheckpointError, match=r"tensor model\.weight does not decode to what was encoded"):
        write_shard(snapshots.slot(0, 5), tmp_path / "step", run="run", world_size=1)
    assert list((tmp_path / "step").iterdir()) == []


@pytest.mark.parametrize("name", ["rank-00000.json", MANIFEST])
def test_file_of_another_format_is_refused_by_its_number(name: str, checkpoints: SavedFolder) -> None:
    checkpoints.save(1, world_size=1)
    path = checkpoints.step_directory(1) / name
    path.write_bytes(path.read_bytes().replace(b'"format":5', b'"format":4'))
    with pytest.raises(CheckpointUnreadable, match=rf"{name} is not .* of this version: it has format 4, not 5"):
        read_shard(path.parent, 0, checkpoints.snapshots.empty(), generation=1)


def test_disk_that_returns_other_bytes_is_noticed(
    snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = NewFile.flush

    def flush_badly(new: NewFile) -> None:
        flush(new)
        data = bytearray(new.path.read_bytes())
        data[len(data) // 2] ^= 1
        new.path.write_bytes(data)

    monkeypatch.setattr(NewFile, "flush", flush_badly)
    with pytest.raises(CheckpointError, match=r"did not read back .* set --checkpoints"):
        write_shard(snapshots.slot(0, 5), tmp_path / "step", run="run", world_size=1)
    assert list((tmp_path / "step").iterdir()) == []


def test_checkpoint_of_another_run_is_not_replaced(checkpoints: SavedFolder) -> None:
    manifest = checkpoints.save(1)
    with pytest.raises(CheckpointError, match="checkpoint of run run: set --checkpoints"):
        write_shard(checkpoints.snapshots.slot(0, 1), checkpoints.step_directory(1), run="newcomer", world_size=2)
    assert checkpoints.verify(1) == manifest


def test_full_disk_is_one_line_with_the_fix_and_leaves_nothing(snapshots: Snapshots, small_tmpfs: Path) -> None:
    noise = {"weight": random.Random(1).randbytes(2 * MIB)}
    with pytest.raises(CheckpointError, match=r"No space left on device: free space .* --checkpoints") as raised:
        write_shard(snapshots.slot(0, 1, tensors=noise), small_tmpfs / "step", run="run", world_size=1)
    assert "\n" not in str(raised.value)
    assert list((small_tmpfs / "step").iterdir()) == []


def test_file_size_limit_is_one_line_with_the_fix_and_leaves_nothing(snapshots: Snapshots, tmp_path: Path) -> None:
    slot = snapshots.slot(0, 1, tensors={"weight": random.Random(1).randbytes(2 * MIB)})
    message = error_of_writing(slot, tmp_path / "step", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB)))
    assert "File too large: raise the file size limit (ulimit -f) or set --checkpoints" in message
    assert list((tmp_path / "step").iterdir()) == []


def error_of_writing(slot: Path, directory: Path, limit: Callable[[], None]) -> str:
    """Write in a process with a limit; return the error."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def write() -> None:
        limit()
        try:
            write_shard(slot, directory, run="run", world_size=1)
        except CheckpointError as error:
            sender.send_bytes(str(error).encode())

    process = context.Process(target=write)
    process.start()
    assert receiver.poll(20)
    message = receiver.recv_bytes().decode()
    process.join()
    return message


def test_read_only_file_system_is_one_line_with_the_fix(snapshots: Snapshots, small_tmpfs: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_tmpfs], check=True)
    with pytest.raises(CheckpointError, match=r"Read-only file system: make it writable .* --checkpoints"):
        write_shard(snapshots.slot(0, 1), small_tmpfs / "step", run="run", world_size=1)


def test_directory_without_permission_is_one_line_with_the_fix(snapshots: Snapshots) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "closed").mkdir(mode=0o500)
        slot = Path(shutil.copy(snapshots.slot(0, 1), folder))
        is_root = os.geteuid() == 0  # who may write everywhere
        if is_root:
            os.chown(slot, NOBODY, NOBODY)
        message = error_of_writing(slot, folder / "closed" / "step", lambda: os.seteuid(NOBODY) if is_root else None)
    assert "Permission denied: make it writable" in message
    assert "--checkpoints" in message
