"""A damaged manifest is one line that names the file and the fix, whatever the damage is."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, ManifestShard, load_manifest
from holdfast_checkpoint.format.sealed_json import seal

GOOD = Manifest(
    run="run",
    step=40,
    world_size=2,
    generation=1,
    committed_unix_s=1.5,
    raw_bytes=10,
    stored_bytes=10,
    content_digest="d",
    stale=False,
    shards=tuple(ManifestShard(rank=rank, index_digest="d", shard_bytes=5) for rank in (0, 1)),
    bases=(20,),
    since_full=1,
)


def sealed(**changes: Any) -> bytes:
    return seal({"format": 5, **dataclasses.asdict(GOOD), **changes})


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(GOOD.encode())
    assert load_manifest(tmp_path) == GOOD


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(4096),
        GOOD.encode()[:50],
        b"\xff\xfe",
        b"[]",
        b'{"body":' * 100_000,
        sealed(format=6),
        sealed(step="40"),
        sealed(step=-1),
        sealed(generation=True),
        sealed(world_size=3),
        sealed(world_size=10**18),
        sealed(world_size="2"),
        sealed(shards=7),
        sealed(shards=[{"rank": 1}]),
        sealed(bases=[40]),
        sealed(bases=["20"]),
        sealed(run=None),
        sealed(committed_unix_s="now"),
        sealed(later=1),
        seal({"run": "run"}),
    ],
)
def test_a_damaged_manifest_is_one_line(data: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(data)
    check(tmp_path)


def make_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, make_huge_file])
def test_something_else_in_place_of_a_manifest_is_one_line(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / MANIFEST)
    check(tmp_path)


def check(folder: Path) -> None:
    with pytest.raises(CheckpointUnreadable) as caught:
        load_manifest(folder)
    line = str(caught.value)
    assert line.startswith(str(folder / MANIFEST)) and line.endswith("restore it from a copy, or remove its folder")
    assert "\n" not in line
