"""The mark that `holdfast checkpoint verify` leaves: when it counts, and when it is void."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format import verification
from holdfast_checkpoint.format.manifest import MANIFEST, load_manifest
from holdfast_checkpoint.format.sealed_json import seal
from holdfast_checkpoint.format.shard_index import index_path, shard_path
from holdfast_checkpoint.format.verification import VERIFIED, Verification, write_verification
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.overview import find_histories
from holdfast_checkpoint.store.secondary import Secondary
from tests.checkpoint.conftest import SavedFolder
from tests.support.object_places import QUICK, Place
from tests.support.snapshots import RUN, as_run

GOOD = Verification(verified_unix_s=1.79e9, manifest_digest="a", files_digest="b", read_bytes=3)


@pytest.fixture
def directory(checkpoints: SavedFolder) -> Path:
    """The committed checkpoint of step 40."""
    checkpoints.save(40)
    return checkpoints.step_directory(40)


def note(directory: Path, **changes: Any) -> Verification:
    """Write the mark of a reading that ends now."""
    manifest = load_manifest(directory)
    files = verification.files_digest_in(directory.parent, manifest)
    assert files is not None
    mark = replace(GOOD, manifest_digest=verification.manifest_digest(manifest), files_digest=files, **changes)
    write_verification(directory, mark)
    return mark


def noted(directory: Path) -> Verification | None:
    """Return the mark of a checkpoint, if it counts."""
    (history,) = find_histories(directory.parent)
    (found,) = (one for one in history.checkpoints if one.directory == directory)
    return found.verification


def test_a_mark_counts_while_the_files_are_the_same(directory: Path) -> None:
    assert noted(directory) is None
    good = note(directory)
    assert noted(directory) == good
    damaged = note(directory, damages=("rank-00000.shard is damaged",))
    assert noted(directory) == damaged


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def lengthen(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [touch, lengthen, Path.unlink])
@pytest.mark.parametrize("path", [shard_path, index_path])
def test_a_mark_is_void_once_a_file_changes(
    directory: Path, path: Callable[[Path, int], Path], change: Callable[[Path], None]
) -> None:
    note(directory)
    change(path(directory, 1))
    assert noted(directory) is None


def test_a_mark_is_void_once_a_file_of_the_base_changes(directory: Path, checkpoints: SavedFolder) -> None:
    checkpoints.save(50)
    builder = checkpoints.step_directory(50)
    (builder / MANIFEST).write_bytes(replace(load_manifest(builder), bases=(40,)).encode())
    assert len(verification.checked_files(load_manifest(builder))) == 8
    note(builder)
    assert noted(builder) is not None
    touch(shard_path(directory, 0))
    assert noted(builder) is None


def test_a_mark_of_another_manifest_is_void(directory: Path) -> None:
    note(directory)
    (directory / MANIFEST).write_bytes(replace(load_manifest(directory), committed_unix_s=1.0).encode())
    assert noted(directory) is None


@pytest.mark.parametrize(
    "change",
    [
        {"verified_unix_s": "yesterday"}, {"verified_unix_s": True}, {"verified_unix_s": float("nan")},
        {"verified_unix_s": 1e300}, {"verified_unix_s": -1}, {"read_bytes": -1}, {"read_bytes": 1.5},
        {"manifest_digest": None}, {"files_digest": 5}, {"damages": "none"}, {"damages": [1]},
        {"damages": ["\x1b[2J"]}, {"damages": ["\ud800"]}, {"damages": ["x" * 601]}, {"damages": ["x"] * 17},
        {"format": 2}, {"more": 1},
    ],
)  # fmt: skip
def test_a_mark_with_odd_values_is_as_good_as_none(directory: Path, change: dict[str, object]) -> None:
    mark = note(directory)
    (directory / VERIFIED).write_bytes(seal({**json.loads(mark.encode())["body"], **change}))
    assert noted(directory) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 60_000, b"0" * 100_000, seal({}), seal({"format": 1})])
def test_a_mark_that_is_none_is_as_good_as_none(directory: Path, data: bytes) -> None:
    (directory / VERIFIED).write_bytes(data)
    assert noted(directory) is None


def test_the_lines_of_a_mark_are_few_short_and_printable(directory: Path) -> None:
    note(directory, damages=("tensor \x1b[2J\n" + "x" * 1000, *("more" for _ in range(100))))
    found = noted(directory)
    assert found and found.damages[0].startswith("tensor ?[2J?xxx")
    assert max(map(len, found.damages)) == 600
    assert len(found.damages) == 16


def test_a_mark_is_not_written_for_another_checkpoint(directory: Path) -> None:
    with pytest.raises(CheckpointError, match="holds another checkpoint now"):
        write_verification(directory, GOOD)
    assert not (directory / VERIFIED).exists()


def test_a_mark_that_cannot_be_written_is_one_line(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(verification, "write_file", refuse)
    with pytest.raises(CheckpointError, match=r"^cannot write .*/verified.json: Read-only file system$"):
        note(directory)


def test_a_mark_goes_with_its_checkpoint_and_keeps_none(directory: Path, checkpoints: SavedFolder) -> None:
    note(directory)
    for step in (50, 60):  # two are kept
        checkpoints.save(step)
    assert not directory.exists()
    assert checkpoints.removal_failures_total == 0


def test_a_copy_in_the_secondary_has_no_mark(directory: Path, checkpoints: CheckpointDirectory) -> None:
    note(directory)
    place = Place("--checkpoints-secondary")
    secondary = Secondary(as_run(checkpoints), place.open(), run=RUN, kept=2, backoff=QUICK)
    secondary.start(lambda: (range(2), 2))
    try:
        assert secondary.wait(20)
    finally:
        secondary.close()
    names = [name.rpartition("/")[2] for name in place.names()]
    assert MANIFEST in names
    assert VERIFIED not in names


def test_a_step_that_is_written_again_has_no_mark_of_before(directory: Path, checkpoints: SavedFolder) -> None:
    note(directory)
    (directory / MANIFEST).unlink()
    checkpoints.save(40, generation=2)
    assert not (directory / VERIFIED).exists()
