import errno
import io
import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_agent.preflight import storage
from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let each file be refused with an error."""

    def fail(**_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)


def have_room(monkeypatch: pytest.MonkeyPatch, blocks: int, free_bytes: int) -> None:
    sizes = SimpleNamespace(f_blocks=blocks, f_bavail=free_bytes, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _: sizes)


def test_a_file_system_is_measured_once_and_nothing_stays_in_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    speed = storage.disk([tmp_path, tmp_path / "a", tmp_path / "missing"], nbytes=1 << 20)
    assert speed is not None and speed > 0
    assert storage.shared_memory(tmp_path / "a", nbytes=1 << 20) > 0
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]
    assert storage.disk([tmp_path / "missing"]) is None


def test_bytes_that_come_back_changed_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flipping(io.FileIO):
        def readall(self) -> bytes:
            return bytes([super().read(1)[0] ^ 1]) + super().readall()

    def flipping(**_: Any) -> Flipping:
        return Flipping(tmp_path / "file", "w+")

    monkeypatch.setattr(tempfile, "TemporaryFile", flipping)
    for check in (partial(storage.disk, [tmp_path]), partial(storage.shared_memory, tmp_path)):
        with pytest.raises(NodeFaultError, match="returns other bytes than were written"):
            check(nbytes=8192)


@pytest.mark.parametrize(
    ("number", "of_disk", "of_memory"),
    [
        (errno.EROFS, NodeFaultError, NodeFaultError),
        (errno.EIO, NodeFaultError, NodeFaultError),
        (errno.ENOSPC, NodeFaultError, UnmeasuredError),
        (errno.EMFILE, UnmeasuredError, UnmeasuredError),
        (errno.EINVAL, UnmeasuredError, UnmeasuredError),
    ],
)
def test_only_an_error_of_the_place_itself_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, of_disk: type[Exception], of_memory: type[Exception]
) -> None:
    refuse(monkeypatch, number)
    with pytest.raises(of_disk, match=os.strerror(number)):
        storage.disk([tmp_path])
    with pytest.raises(of_memory, match=os.strerror(number)):
        storage.shared_memory(tmp_path)


def test_a_full_disk_is_a_fault_and_little_shared_memory_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_room(monkeypatch, blocks=1, free_bytes=12 << 20)
    with pytest.raises(NodeFaultError, match=r"has only 12.0 MiB free"):
        storage.disk([tmp_path])
    with pytest.raises(UnmeasuredError, match=r"has only 12.0 MiB free"):
        storage.shared_memory(tmp_path)


def test_a_file_system_that_calls_all_its_sizes_zero_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_room(monkeypatch, blocks=0, free_bytes=0)
    assert storage.disk([tmp_path], nbytes=4096)
    assert storage.shared_memory(tmp_path, nbytes=4096)


def test_shared_memory_that_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(NodeFaultError, match="No such file"):
        storage.shared_memory(tmp_path / "missing")
