"""The agent lacks descriptors, threads or memory for a while, or a folder: afterwards all checkpoints continue."""

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.checkpoints import known_checkpoints, restore_sources, shard_saver, worker, workers
from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_proto.snapshot import Slot
from tests.support.coroutines import end, until
from tests.support.nodes import RecordedNode, make_node
from tests.support.snapshots import Snapshots

PATIENCE_S = 60.0


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """A process that can open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def refuse_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedNode]:
    """A node that writes its shards without a worker process."""

    async def run(task: str, *, directory: Path, **arguments: Any) -> None:
        worker._TASKS[task](directory=str(directory), **arguments)

    monkeypatch.setattr(shard_saver, "_SHORTAGE_LOOK_S", 0.01)
    node = make_node(tmp_path)
    monkeypatch.setattr(node.saver._workers, "run", run)
    yield node
    node.checkpoints.close()


def pinned(node: RecordedNode, snapshots: Snapshots, step: int) -> Path:
    """Return a slot of rank 0 of a world of one, pinned for a checkpoint of ``step``."""
    return snapshots.fill(node.memory.grant(0, 1 << 16, 1).paths[0], 0, step)


def is_pinned(path: Path) -> bool:
    with Slot(path) as slot:
        return slot.header.persist


def failures(node: RecordedNode) -> list[str]:
    return [event.checkpoint_failed.reason for event in node.link.emitted if event.HasField("checkpoint_failed")]


async def expect_next_checkpoint(node: RecordedNode, snapshots: Snapshots, step: int) -> None:
    path = pinned(node, snapshots, step)
    node.saver.schedule(0, step, world_size=1)
    await node.saver.drain(PATIENCE_S)
    assert node.inventory.committed[-1] == step
    assert not is_pinned(path)


async def test_a_slot_that_cannot_be_opened_is_written_when_it_can(
    node: RecordedNode, snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    path = pinned(node, snapshots, 10)
    with no_descriptors():
        node.saver.schedule(0, 10, world_size=1)
        await until(lambda: "cannot be opened" in caplog.text, "the agent has looked")
    await node.saver.drain(PATIENCE_S)
    assert (node.inventory.committed, failures(node), is_pinned(path)) == ([10], [], False)


async def test_a_slot_is_released_although_it_could_not_be_opened_when_its_checkpoint_had_failed(
    node: RecordedNode, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = pinned(node, snapshots, 10)
    shortage = contextlib.ExitStack()

    async def fail(*_: object, **__: object) -> None:
        shortage.enter_context(no_descriptors())
        raise CheckpointError("cannot start a checkpoint worker")

    with shortage, monkeypatch.context() as patch:
        patch.setattr(node.saver._workers, "run", fail)
        node.saver.schedule(0, 10, world_size=1)
        await until(lambda: "cannot be opened" in caplog.text, "the agent has looked")
    await node.saver.drain(PATIENCE_S)
    assert failures(node) == ["cannot start a checkpoint worker"]
    assert not is_pinned(path)
    await expect_next_checkpoint(node, snapshots, 20)


async def test_what_a_rank_left_pinned_is_written_although_no_slot_could_be_opened_when_it_ended(
    node: RecordedNode, snapshots: Snapshots
) -> None:
    path = pinned(node, snapshots, 10)
    with no_descriptors():
        node.saver.schedule_pinned(0, world_size=1)
    await until(lambda: node.inventory.committed == [10], "the checkpoint is written")
    await node.saver.drain(PATIENCE_S)
    assert not is_pinned(path)


async def test_without_a_new_thread_one_checkpoint_fails_in_one_line_and_the_next_is_written(
    node: RecordedNode, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pinned(node, snapshots, 10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_thread)
        node.saver.schedule(0, 10, world_size=1)
        await until(lambda: failures(node), "the failure is reported")
    (reason,) = failures(node)
    assert "can't start new thread" in reason and "raise the agent's limits (ulimit -n, ulimit -u)" in reason
    assert not is_pinned(path)
    await expect_next_checkpoint(node, snapshots, 20)


async def test_a_job_that_found_no_thread_is_not_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Recorder:
        pid = 1

        def __init__(self, *, background: bool) -> None: ...

        def ask(self, job: dict[str, Any]) -> dict[str, str]:
            done.append(job["task"])
            return {}

        def kill(self) -> None: ...

        def end(self) -> None: ...

    monkeypatch.setattr(workers, "_Worker", Recorder)
    pool = workers.CheckpointWorkers(1, background=False)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_thread)
        with pytest.raises(CheckpointError, match="can't start new thread"):
            await pool.run("stale", directory=tmp_path)
    await pool.run("write", directory=tmp_path)
    pool.close()
    assert done == ["write"]


def test_known_checkpoints_that_could_not_be_written_are_written_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    file = tmp_path / "known.json"
    known = KnownCheckpoints("there", file)
    with monkeypatch.context() as patch:
        patch.setattr(known_checkpoints, "write_file", refuse)
        with pytest.raises(CheckpointError, match="Too many open files"):
            known.note(1, [10])
    assert known.vanished(1, [], kept=2) == {10}
    known.note(1, [10])
    assert KnownCheckpoints("there", file).vanished(1, [], kept=2) == {10}


async def test_a_checkpoint_that_somebody_removes_is_reported_once_and_the_next_is_written(
    node: RecordedNode, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_sources, "REFRESH_S", 0.01)
    looking = asyncio.create_task(node.inventory.refresh(node.saver.report_loss))
    await expect_next_checkpoint(node, snapshots, 10)
    shutil.rmtree(node.inventory.primary.at(10).step_directory(10))
    await until(lambda: failures(node) != [], "its loss is reported")
    await expect_next_checkpoint(node, snapshots, 20)
    await end(looking)
    (reason,) = failures(node)
    assert reason.startswith("its files are gone from ")
    assert "mount that place again, or put them back" in reason
