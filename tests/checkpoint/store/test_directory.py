import errno
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from holdfast_checkpoint import checkpoint_errors
from holdfast_checkpoint.checkpoint_errors import CheckpointCommitted, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format import durable
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, load_manifest
from holdfast_checkpoint.format.shard_index import index_path, shard_path
from holdfast_checkpoint.format.slot_shard import read_shard
from holdfast_checkpoint.store import directory as checkpoint
from holdfast_checkpoint.store.directory import CheckpointDirectory
from tests.checkpoint.conftest import SavedFolder, contents
from tests.support.snapshots import RUN, Snapshots


def test_checkpoint_is_committed_when_the_last_rank_has_written(checkpoints: SavedFolder) -> None:
    for rank in (2, 0):
        checkpoints.write(rank, 40, world_size=3)
        assert checkpoints.commit_if_complete(40, 3, RUN) is None
    assert checkpoints.committed() == []

    checkpoints.write(1, 40, world_size=3)
    manifest = checkpoints.commit_if_complete(40, 3, RUN)

    assert manifest is not None
    assert (manifest.run, manifest.step, manifest.world_size, manifest.generation) == (RUN, 40, 3, 1)
    assert manifest.raw_bytes == 3 * (256 + 8 + 1000)
    assert checkpoints.committed() == [40]
    assert checkpoints.verify(40) == checkpoints.load_manifest(40) == manifest
    assert checkpoints.commit_if_complete(40, 3, RUN) == manifest


def test_agents_that_race_commit_one_manifest(checkpoints: SavedFolder) -> None:
    for rank in range(4):
        checkpoints.write(rank, 40, world_size=4)
    barrier = threading.Barrier(6)
    manifests: list[Manifest | None] = []

    def commit() -> None:
        barrier.wait()
        manifests.append(CheckpointDirectory(checkpoints.path, kept=2).commit_if_complete(40, 4, RUN))

    with ThreadPoolExecutor(6) as pool:
        for _ in range(6):
            pool.submit(commit)
    committed = checkpoints.verify(40)
    assert len(manifests) == 6
    assert all(manifest is not None and manifest.shards == committed.shards for manifest in manifests)
    assert not list(checkpoints.path.rglob("*.tmp"))


def test_shards_that_do_not_belong_together_are_not_committed(checkpoints: SavedFolder) -> None:
    checkpoints.write(0, 40)
    checkpoints.write(1, 40, world_size=3)
    assert checkpoints.commit_if_complete(40, 2, RUN) is None
    checkpoints.write(1, 40, generation=2)
    assert checkpoints.commit_if_complete(40, 2, RUN) is None
    checkpoints.write(0, 40, generation=2)
    assert checkpoints.commit_if_complete(40, 2, "another") is None
    assert checkpoints.commit_if_complete(40, 2, RUN) is not None


def test_index_without_its_shard_is_not_committed(checkpoints: SavedFolder) -> None:
    for rank in range(2):
        checkpoints.write(rank, 40)
    shard = shard_path(checkpoints.step_directory(40), 1)
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert checkpoints.commit_if_complete(40, 2, RUN) is None
    shard.unlink()
    assert checkpoints.commit_if_complete(40, 2, RUN) is None
    shard.write_bytes(data)
    assert checkpoints.commit_if_complete(40, 2, RUN) is not None


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_manifest_that_cannot_be_read_now_is_not_taken_for_none(
    number: int, checkpoints: SavedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(10)

    def fails(path: Path, _most_bytes: int) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("holdfast_checkpoint.format.manifest.read_regular", fails)
    with pytest.raises(CheckpointUnavailable, match=rf"manifest\.json: {os.strerror(number)}"):
        CheckpointDirectory(checkpoints.path, kept=2).committed()


@pytest.mark.parametrize(
    ("committed", "again"), [(1, 2), (2, 1)], ids=["by a later one", "by a node that was replaced"]
)
def test_step_saved_again_leaves_its_checkpoint_as_it_is(committed: int, again: int, checkpoints: SavedFolder) -> None:
    manifest = checkpoints.save(20, generation=committed)
    for rank in range(2):
        with pytest.raises(CheckpointCommitted, match=f"is committed already, by generation {committed}: it stays"):
            checkpoints.write(rank, 20, generation=again)
    assert checkpoints.commit_if_complete(20, 2, RUN) == manifest
    assert checkpoints.verify(20) == manifest


def test_manifest_and_a_shard_that_is_replaced_at_the_same_moment_see_each_other(
    checkpoints: SavedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        checkpoints.write(rank, 20)
    real = durable.write_file

    def late(target: Path, data: bytes) -> None:
        if target.name == MANIFEST:  # just before this, the run went back and another node saved the step again
            checkpoints.write(1, 20, generation=2)
        real(target, data)

    monkeypatch.setattr(checkpoint, "write_file", late)
    assert checkpoints.commit_if_complete(20, 2, RUN) is None
    assert checkpoints.committed() == []


def test_same_snapshot_written_again_repairs_the_checkpoint(checkpoints: SavedFolder) -> None:
    manifest = checkpoints.save(10)
    shard_path(checkpoints.step_directory(10), 1).write_bytes(b"damaged")
    with pytest.raises(CheckpointUnreadable):
        checkpoints.verify(10)
    checkpoints.write(1, 10)
    assert checkpoints.verify(10) == manifest


def test_save_without_news_is_called_stale(checkpoints: SavedFolder) -> None:
    tensors = {"weight": b"same"}
    assert not checkpoints.save(10, tensors=tensors).stale
    assert checkpoints.save(20, tensors=tensors, tree={"position": 20}).stale
    assert checkpoints.save(30, tensors=tensors).stale
    assert not checkpoints.save(40, tensors={"weight": b"news"}).stale
    assert not any(checkpoints.save(step, tensors={}).stale for step in (50, 60))


def test_damaged_or_copied_manifest_is_not_listed(checkpoints: SavedFolder) -> None:
    checkpoints.save(10)
    checkpoints.save(20)
    path = checkpoints.step_directory(20) / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"step":20', b'"step":21'))
    checkpoints.step_directory(30).mkdir()
    (checkpoints.step_directory(30) / MANIFEST).write_bytes((checkpoints.step_directory(10) / MANIFEST).read_bytes())
    assert checkpoints.committed() == [10]
    with pytest.raises(CheckpointUnreadable, match=r"step-00000020/manifest\.json is damaged"):
        checkpoints.load_manifest(20)
    with pytest.raises(CheckpointUnreadable, match="is the manifest of step 10"):
        checkpoints.load_manifest(30)


def test_a_manifest_is_read_again_only_if_its_file_has_changed(
    checkpoints: SavedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(folder: Path) -> Manifest:
        read.append(folder.name)
        return load_manifest(folder)

    monkeypatch.setattr(checkpoint, "load_manifest", counted)
    checkpoints.save(10)
    checkpoints.save(20)
    assert checkpoints.committed() == [10, 20]
    read.clear()
    assert checkpoints.committed() == [10, 20]
    assert read == []
    path = checkpoints.step_directory(10) / MANIFEST
    path.write_bytes(path.read_bytes())
    assert checkpoints.committed() == [10, 20]
    assert read == ["step-00000010"]


def test_verify_names_what_is_missing(checkpoints: SavedFolder) -> None:
    checkpoints.save(10)
    index_path(checkpoints.step_directory(10), 1).unlink()
    with pytest.raises(CheckpointUnavailable, match=r"rank-00001\.json: No such file"):
        checkpoints.verify(10)


def test_start_creates_the_directory_and_removes_dead_writers_leftovers(snapshots: Snapshots, tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path / "new" / "checkpoints", kept=1)
    assert checkpoints.committed() == []
    checkpoints.check_writable()
    snapshots.commit(checkpoints, 10)
    before = sorted(checkpoints.path.rglob("*"))

    host, directory = socket.gethostname(), checkpoints.step_directory(10)
    dead = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(dead, 0)
    reused = directory / f"rank-00001.shard.{host}.{os.getpid()}.7.tmp"
    leftovers = [directory / f"rank-00000.shard.{host}.{dead}.0.tmp", reused]
    alive = [
        directory / f"rank-00002.shard.{host}.{os.getpid()}.8.tmp",
        directory / f"rank-00003.shard.{host}.{os.getppid()}.0.tmp",
        directory / f"rank-00004.shard.another-host.{dead}.0.tmp",
    ]
    for path in leftovers + alive:
        path.touch()
    os.utime(reused, (0, 0))

    checkpoints.check_writable()
    assert sorted(checkpoints.path.rglob("*")) == sorted(before + alive)


def test_directory_that_cannot_be_written_is_one_line_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(checkpoint_errors.CheckpointError, match="set --checkpoints to a directory, not to a file"):
            CheckpointDirectory(path, kept=1).check_writable()


def test_directory_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointUnavailable, match="Not a directory"):
        CheckpointDirectory(tmp_path / "file", kept=1).committed()


def test_newest_committed_loads_whenever_its_writers_are_killed(checkpoints: SavedFolder) -> None:
    generator = random.Random(4)
    context = multiprocessing.get_context("fork")
    began_s = time.monotonic()
    checkpoints.save(1, generation=1)
    checkpoints.save(2, generation=1)
    longest_life_s = 2 * (time.monotonic() - began_s)
    target = checkpoints.snapshots.empty()
    newest_seen, interrupted = 2, 0
    for generation in range(2, 27):
        committed = checkpoints.committed()
        first = committed[-1] + generator.choice([1, 2])
        begun = context.Event()
        process = context.Process(target=_save_forever, args=(checkpoints, first, generation, begun))
        process.start()
        assert begun.wait(20)
        time.sleep(generator.uniform(0, longest_life_s))  # a random moment of death, not a wait
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL

        newest = checkpoints.committed()[-1]
        manifest = checkpoints.verify(newest)
        for rank in range(2):
            read_shard(checkpoints.step_directory(newest), rank, target, generation=generation)
            assert contents(target) == checkpoints.snapshots.tensors(rank, newest, manifest.generation)
        interrupted += any(path.suffix == ".tmp" for path in checkpoints.path.rglob("*"))
        checkpoints.check_writable()
        assert not list(checkpoints.path.rglob("*.tmp"))
        newest_seen = max(newest, newest_seen)
    assert newest_seen > 2
    assert interrupted > 0


def _save_forever(checkpoints: SavedFolder, step: int, generation: int, begun: Event) -> None:
    begun.set()
    while True:
        checkpoints.save(step, generation=generation)
        step += 1
