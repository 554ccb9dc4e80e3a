"""What `holdfast checkpoint verify` leaves next to a checkpoint, and what `list` shows of it."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from holdfast_checkpoint.format import verification
from holdfast_checkpoint.format.keeping import keep
from holdfast_checkpoint.format.manifest import MANIFEST, load_manifest
from holdfast_checkpoint.format.shard_index import load_index, shard_path
from holdfast_checkpoint.format.verification import VERIFIED
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.locations import PRIMARY, open_objects
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints, mark_name, shard_name
from holdfast_proto.exit_codes import ExitCode
from tests.cli.conftest import holdfast
from tests.support.snapshots import Snapshots

FRESH = "were read back when they were written"


@pytest.fixture
def folder(tmp_path: Path, snapshots: Snapshots) -> Path:
    """Checkpoints of two ranks: of steps 10 and 20."""
    checkpoints = CheckpointDirectory(tmp_path / "checkpoints", kept=5)
    for step in (10, 20):
        snapshots.commit(checkpoints, step)
    return checkpoints.path


@pytest.fixture
def place(folder: Path) -> ObjectCheckpoints:
    """The same checkpoints in a store in memory."""
    remote = open_objects(PRIMARY, f"memory://{uuid.uuid4().hex}/prefix")
    for directory in sorted(folder.glob("step-*")):
        for rank in range(2):
            remote.put_shard(directory, rank)
        assert remote.commit(load_manifest(directory), [load_index(directory, rank) for rank in range(2)])
    return remote


def checkpoint(*arguments: object, place: object) -> Result:
    return holdfast("checkpoint", *arguments, "--checkpoints", place, columns=160)


def listed(place: object) -> dict[int, Any]:
    """Return what `list` knows of a reading, by step."""
    shown = json.loads(checkpoint("list", "--json", place=place).stdout)
    return {one["step"]: one["verification"] for one in shown}


def flip_a_byte(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def test_a_good_checkpoint_is_listed_as_verified(folder: Path) -> None:
    assert listed(folder) == {10: None, 20: None}
    text = checkpoint("list", place=folder).stdout
    assert FRESH in text and "verified 20" not in text
    assert checkpoint("verify", 10, place=folder).exit_code == 0
    found = listed(folder)
    stored_bytes = load_manifest(folder / "step-00000010").stored_bytes
    assert (found[10]["read_bytes"], found[10]["damages"], found[20]) == (stored_bytes, [], None)
    text = checkpoint("list", place=folder).stdout
    assert FRESH in text and text.count("verified 20") == 1
    checkpoint("verify", "--all", place=folder)
    assert FRESH not in checkpoint("list", place=folder).stdout


def test_a_reason_for_keeping_is_shown_as_it_is(folder: Path) -> None:
    keep(folder / "step-00000010", "rank [/3] is [red]")
    assert "kept: rank [/3] is [red]" in checkpoint("list", place=folder).stdout


def test_a_damaged_checkpoint_is_listed_with_what_is_damaged(folder: Path) -> None:
    flip_a_byte(shard_path(folder / "step-00000020", 1))
    assert checkpoint("verify", place=folder).exit_code == ExitCode.FAILED
    found = listed(folder)[20]
    (line,) = found["damages"]
    assert line.startswith("step-00000020/rank-00001.shard is damaged: tensor ")
    assert found["read_bytes"] == load_manifest(folder / "step-00000020").shards[0].shard_bytes
    assert line in " ".join(checkpoint("list", place=folder).stdout.split())


def test_a_newer_result_replaces_an_older_one(folder: Path) -> None:
    shard = shard_path(folder / "step-00000020", 1)
    good = shard.read_bytes()
    flip_a_byte(shard)
    checkpoint("verify", place=folder)
    shard.write_bytes(good)
    assert listed(folder)[20] is None, "the file has changed since"
    checkpoint("verify", place=folder)
    assert listed(folder)[20]["damages"] == []


def test_a_reading_that_misses_a_file_leaves_no_result(folder: Path) -> None:
    shard = shard_path(folder / "step-00000020", 1)
    shard.unlink()
    assert f"damaged: without {shard}" in checkpoint("list", "--json", place=folder).output
    result = checkpoint("verify", place=folder)
    assert result.exit_code == ExitCode.CHECKPOINTS_UNAVAILABLE
    assert str(shard) in result.output.replace("\n", "")
    assert not (folder / "step-00000020" / VERIFIED).exists()


def test_a_folder_without_a_manifest_gets_no_mark(folder: Path) -> None:
    (folder / "step-00000020" / MANIFEST).unlink()
    assert checkpoint("verify", "--all", place=folder).exit_code == ExitCode.FAILED
    assert [path.parent.name for path in folder.rglob(VERIFIED)] == ["step-00000010"]


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_in_a_folder_that_is_read_only_one_line_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], is_damaged: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(verification, "write_file", refuse)
    if is_damaged:
        flip_a_byte(shard_path(folder / "step-00000020", 1))
    result = checkpoint("verify", *flags, place=folder)
    assert result.exit_code == (ExitCode.FAILED if is_damaged else ExitCode.SUCCESS)
    reason = f"cannot write {folder}/step-00000020/verified.json: Read-only file system"
    assert result.stderr == f"step 20: `list` will not show this result: {reason}\n"


def test_a_mark_that_cannot_replace_what_is_there_changes_no_exit_code(folder: Path) -> None:
    (folder / "step-00000020" / VERIFIED).mkdir()
    result = checkpoint("verify", place=folder)
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert list((folder / "step-00000020").glob("*.tmp")) == []
    assert listed(folder)[20] is None


def test_the_result_for_a_store_stays_in_the_store(place: ObjectCheckpoints) -> None:
    url = place.store.url
    assert checkpoint("verify", place=url).exit_code == 0
    assert mark_name(20, VERIFIED) in place.store.listing()
    found = listed(url)
    assert (found[10], found[20]["damages"]) == (None, [])
    data = place.store.read(shard_name(20, 1))
    place.store.write(shard_name(20, 1), bytes([data[0] ^ 1]) + data[1:])
    assert listed(url)[20] is None, "the object has been put again"
    assert checkpoint("verify", place=url).exit_code == ExitCode.FAILED
    (line,) = listed(url)[20]["damages"]
    assert line.startswith("step-00000020/rank-00001.shard is damaged: tensor ")


def test_a_store_that_takes_no_mark_changes_no_exit_code(
    place: ObjectCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    result = checkpoint("verify", place=place.store.url)
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert "access denied" in result.stderr


def test_a_step_that_is_put_again_has_no_mark_of_before(place: ObjectCheckpoints, folder: Path) -> None:
    checkpoint("verify", place=place.store.url)
    directory = folder / "step-00000020"
    assert place.commit(load_manifest(directory), [load_index(directory, rank) for rank in range(2)])
    assert mark_name(20, VERIFIED) not in place.store.listing()
