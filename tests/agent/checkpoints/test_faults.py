"""Workers, writers and disks fail at any moment, and every committed checkpoint can be read."""

import asyncio
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_base.processes import process_state
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import MANIFEST
from holdfast_checkpoint.format.shard_index import index_path, load_index, shard_path
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import Slot
from tests.support.nodes import RUN, RecordedNode, make_node
from tests.support.snapshots import Snapshots

pytestmark = pytest.mark.system

MIB = 1 << 20
RANKS = 2
PATIENCE_S = 60.0


SEVERAL_WRITES = 5 * MIB + 5
"""Bytes of a tensor whose shard takes more than one write."""


def tensors(rank: int, step: int, generation: int, bulk_bytes: int = 0) -> dict[str, bytes]:
    """Return a state that is worth storing as a difference. Its contents show rank, step and generation."""
    common, own = random.Random(7).randbytes(20_000), f"{rank} {step} {generation}"
    bulk = {"bulk": random.Random(own).randbytes(bulk_bytes)} if bulk_bytes else {}
    return {"common": common, "own": own.encode(), **bulk}


async def save(
    workers: CheckpointWorkers, checkpoints: CheckpointDirectory, slots: list[Path], step: int, generation: int
) -> None:
    """Write and commit a checkpoint of the ranks in these slots, as an agent does."""

    async def write(slot: Path) -> None:
        base = checkpoints.base_for(step, run=RUN, world_size=RANKS, generation=generation, full_every=4)
        directory = checkpoints.step_directory(step)
        shard = {"slot": str(slot), "run": RUN, "world_size": RANKS, "base_step": base, "compression": "always"}
        await workers.run("write", directory=directory, **shard)

    await asyncio.gather(*map(write, slots))
    assert checkpoints.commit_if_complete(step, RANKS, RUN) is not None


def save_forever(
    snapshots: Snapshots,
    checkpoints: CheckpointDirectory,
    first: int,
    generation: int,
    saved: Connection,
    *,
    bulk_bytes: int,
) -> None:
    """Act as an agent that saves step after step, and send a message when the second one is committed."""

    async def work() -> None:
        workers = CheckpointWorkers(RANKS, background=False)
        slots = [snapshots.empty(bulk_bytes + MIB) for _ in range(RANKS)]
        step = first
        while True:
            for rank, slot in enumerate(slots):
                state = tensors(rank, step, generation, bulk_bytes)
                snapshots.fill(slot, rank, step, generation=generation, tensors=state)
            try:
                await save(workers, checkpoints, slots, step, generation)
            except CheckpointError as error:
                if "was killed by SIGKILL" not in str(error):  # two workers in a row
                    raise
            if step == first + 1:
                saved.send_bytes(b"saved")
            step += 1

    asyncio.run(work())


@pytest.mark.parametrize(("bulk_bytes", "generations"), [(0, 6), (SEVERAL_WRITES, 4)])
def test_newest_committed_verifies_whenever_workers_and_agents_are_killed(
    bulk_bytes: int, generations: int, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    generator = random.Random(11)
    context = multiprocessing.get_context("fork")
    target = snapshots.empty(bulk_bytes + MIB)
    seen: set[int] = set()
    step, had_base = 1, 0
    for generation in range(1, generations + 1):
        receiver, sender = context.Pipe(duplex=False)
        arguments, options = (snapshots, checkpoints, step, generation, sender), {"bulk_bytes": bulk_bytes}
        agent = context.Process(target=save_forever, args=arguments, kwargs=options, daemon=True)
        agent.start()
        assert agent.pid is not None
        assert receiver.poll(PATIENCE_S)
        for _ in range(4):
            time.sleep(generator.uniform(0, 0.1))  # a random moment of death, not a wait
            workers = psutil.Process(agent.pid).children()
            if workers:
                generator.choice(workers).kill()
        time.sleep(generator.uniform(0, 0.1))
        os.kill(agent.pid, signal.SIGSTOP)  # it may be starting a worker, which would be missed below
        while process_state(agent.pid) != "T":
            time.sleep(0.001)
        workers = psutil.Process(agent.pid).children()
        agent.kill()
        agent.join()
        while any(process_state(worker.pid) not in ("", "Z", "X") for worker in workers):
            time.sleep(0.01)
        assert agent.exitcode == -signal.SIGKILL

        newest = checkpoints.committed()[-1]
        manifest = checkpoints.verify(newest)
        for rank in range(RANKS):
            read_shard(checkpoints.step_directory(newest), rank, target, generation=9)
            with Slot(target) as slot:
                found = {entry.name: bytes(slot.tensor_bytes(entry)) for entry in slot.meta().tensors}
            assert found == tensors(rank, newest, manifest.generation, bulk_bytes)
        had_base += bool(manifest.bases)
        seen.add(newest)
        checkpoints.check_writable()
        assert not list(checkpoints.path.rglob("*.tmp"))
        step = newest + generator.choice([1, 2])
    assert len(seen) > 2
    assert had_base > 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RecordedNode]:
    """A node of two ranks whose checkpoints are in ``run/checkpoints``."""
    node = make_node(tmp_path)
    yield node
    node.checkpoints.close()


async def take(node: RecordedNode, snapshots: Snapshots, step: int, contents: dict[str, bytes]) -> list[str]:
    """Let rank 0 of a world of one pin a snapshot; return the reasons of failure, if the checkpoint failed."""
    grant = node.memory.grant(0, sum(map(len, contents.values())) + (1 << 16), 1)
    snapshots.fill(grant.paths[0], 0, step, tensors=contents)
    before = len(node.link.emitted)
    node.saver.schedule(0, step, world_size=1)
    await node.saver.drain(PATIENCE_S)
    with Slot(grant.paths[0]) as slot:
        assert not slot.header.persist  # the rank has its slot again, with or without a checkpoint
    failed = [event.checkpoint_failed for event in node.link.emitted[before:] if event.HasField("checkpoint_failed")]
    return [event.reason for event in failed]


def worker_of(node: RecordedNode) -> psutil.Process:
    """The one worker of a node that has written."""
    (worker,) = [process for process in psutil.Process().children() if process.cmdline()[-1] == "--background"]
    return worker


async def test_a_slot_is_released_although_the_checkpoint_lacks_the_shard_of_another_rank(
    node: RecordedNode, snapshots: Snapshots
) -> None:
    path = node.memory.grant(0, 1 << 16, ranks_on_node=2).paths[0]
    snapshots.fill(path, 0, 10)
    for _ in range(2):  # a report that arrives twice
        node.saver.schedule(0, 10, world_size=2)
        await node.saver.drain(PATIENCE_S)
        node.saver.schedule_pinned(0, world_size=2)  # as when the rank has ended
    with Slot(path) as slot:
        assert not slot.header.persist
    assert node.inventory.committed == []
    assert node.link.emitted == []


async def test_full_disk_fails_one_checkpoint_in_one_line_and_the_next_is_written(
    node: RecordedNode, snapshots: Snapshots, small_tmpfs: Path, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoints").symlink_to(small_tmpfs)
    assert await take(node, snapshots, 10, {"small": b"fits"}) == []
    (reason,) = await take(node, snapshots, 20, {"large": random.Random(1).randbytes(2 * MIB)})
    assert "No space left on device: free space there or set --checkpoints" in reason
    assert "\n" not in reason
    assert list(small_tmpfs.rglob("*.tmp")) == []
    assert node.inventory.committed == [10]
    assert await take(node, snapshots, 30, {"small": b"fits again"}) == []
    assert node.inventory.committed == [10, 30]


async def test_directory_that_turns_read_only_fails_until_it_is_writable_again(
    node: RecordedNode, snapshots: Snapshots, small_tmpfs: Path, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoints").symlink_to(small_tmpfs)
    subprocess.run(["mount", "-o", "remount,ro", small_tmpfs], check=True)
    for step in (10, 20):
        (reason,) = await take(node, snapshots, step, {"weight": bytes([step])})
        assert "Read-only file system: make it writable" in reason
        assert "--checkpoints" in reason
    subprocess.run(["mount", "-o", "remount,rw", small_tmpfs], check=True)
    assert await take(node, snapshots, 30, {"weight": b"30"}) == []
    assert node.inventory.committed == [30]


async def test_file_size_limit_fails_one_checkpoint_and_the_next_is_written(
    node: RecordedNode, snapshots: Snapshots, tmp_path: Path
) -> None:
    assert await take(node, snapshots, 10, {"weight": b"10"}) == []
    worker_of(node).rlimit(psutil.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
    (reason,) = await take(node, snapshots, 20, {"large": random.Random(1).randbytes(2 * MIB)})
    assert "File too large: raise the file size limit (ulimit -f) or set --checkpoints" in reason
    assert await take(node, snapshots, 30, {"weight": b"30"}) == []
    assert node.inventory.committed == [10, 30]
    assert list((tmp_path / "run" / "checkpoints").rglob("*.tmp")) == []


async def test_slow_disk_delays_the_checkpoint_and_nothing_else(
    node: RecordedNode, snapshots: Snapshots, tmp_path: Path
) -> None:
    assert await take(node, snapshots, 10, {"weight": b"10"}) == []
    worker = worker_of(node)
    worker.suspend()  # like a worker that waits for the disk forever
    grant = node.memory.grant(0, 1 << 16, 1)
    snapshots.fill(grant.paths[1], 0, 20, tensors={"weight": b"20"})
    node.saver.schedule(0, 20, world_size=1)
    for step in range(21, 25):  # the rank takes its snapshots in the slot that is left
        snapshots.fill(grant.paths[0], 0, step, tensors={"weight": bytes([step])}, persist=False)
        await asyncio.sleep(0)
    assert node.inventory.committed == [10]
    worker.resume()
    await node.saver.drain(PATIENCE_S)
    assert node.inventory.committed == [10, 20]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_a_flipped_byte_in_any_region_of_any_file_is_found_and_named(
    dtype: str, snapshots: Snapshots, tmp_path: Path
) -> None:
    checkpoints = CheckpointDirectory(tmp_path / "checkpoints", kept=2)
    for step in (10, 20):
        slot = snapshots.slot(0, step, tensors=tensors(0, step, 1) | {"zeros": bytes(4096)}, dtype=dtype)
        base = 10 if step == 20 else None
        write_shard(slot, checkpoints.step_directory(step), run=RUN, world_size=1, base_step=base)
        manifest = checkpoints.commit_if_complete(step, 1, RUN)
    assert manifest is not None
    assert manifest.bases == (10,)
    generator = random.Random(3)
    for step in (10, 20):
        directory = checkpoints.step_directory(step)
        for tensor in load_index(directory, 0).tensors:
            shard = shard_path(directory, 0)
            region = range(tensor.stored_offset, tensor.stored_offset + tensor.stored_bytes)
            for position in [region[0], region[-1], *generator.choices(region, k=20)]:
                expect_named(checkpoints, shard, position, rf"rank-00000\.shard is damaged: tensor {tensor.entry.name}")
        for path in (index_path(directory, 0), directory / MANIFEST):
            for position in generator.choices(range(path.stat().st_size), k=20):
                expect_named(checkpoints, path, position, path.name)
    assert checkpoints.verify(20) == manifest


def expect_named(checkpoints: CheckpointDirectory, path: Path, position: int, named: str) -> None:
    """Flip a bit, check that the error names the file's step and ``named``, and repair the file."""
    good = path.read_bytes()
    flipped = good[position] ^ (1 << position % 8)
    path.write_bytes(good[:position] + bytes([flipped]) + good[position + 1 :])
    step = int(path.parent.name.removeprefix("step-"))
    with pytest.raises(CheckpointUnreadable, match=f"{path.parent.name}/{named}"):
        checkpoints.verify(step)
    path.write_bytes(good)
