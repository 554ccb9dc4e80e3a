"""Worker processes: which one does the work, at which priority, and what happens when one dies."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_base.processes import lower_priority, process_state
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.format.shard_index import load_index
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import DATA_OFFSET, MAGIC, Meta, Slot, SnapshotError, TensorEntry
from tests.support.coroutines import wait_until
from tests.support.snapshots import Snapshots

pytestmark = pytest.mark.system

RUN = "run"
LITTLE = 256 << 20
"""Bytes of memory of its own that a worker may have."""

AGENT = """
import asyncio, sys, time
from pathlib import Path
from holdfast_agent import main
from holdfast_agent.checkpoints.workers import CheckpointWorkers

async def work():
    workers = CheckpointWorkers(1, background=True)
    slot, directory = sys.argv[1:]
    shard = {"slot": slot, "run": "run", "world_size": 1, "base_step": None, "compression": "always"}
    await workers.run("write", directory=Path(directory), **shard)
    heavy = sorted({"numpy", "torch"} & set(sys.modules))
    print(workers.pids[0], *heavy, flush=True)
    await asyncio.sleep(600)

asyncio.run(work())
"""


@contextlib.contextmanager
def spinning(core: int) -> Iterator[None]:
    """A process that keeps a core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        os.sched_setaffinity(process.pid, {core})
        yield
        process.kill()


@pytest.fixture
def workers() -> Iterator[CheckpointWorkers]:
    """One worker at a time."""
    workers = CheckpointWorkers(1, background=True)
    yield workers
    workers.close()


async def write(workers: CheckpointWorkers, slot: Path, directory: Path, **others: Any) -> None:
    shard = {"slot": str(slot), "run": RUN, "world_size": 1, "base_step": None, "compression": "always", **others}
    await workers.run("write", directory=directory, **shard)


async def restored(workers: CheckpointWorkers, directory: Path, rank: int, target: Path) -> dict[str, bytes]:
    await workers.run("restore", directory=directory, rank=rank, slot=str(target), generation=3)
    with Slot(target) as slot:
        return {entry.name: bytes(slot.tensor_bytes(entry)) for entry in slot.meta().tensors}


async def test_jobs_are_done_by_one_process_and_their_errors_come_back(
    workers: CheckpointWorkers, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    for rank in range(2):
        await write(workers, snapshots.slot(rank, 10), checkpoints.step_directory(10), world_size=2)
    assert checkpoints.commit_if_complete(10, 2, RUN) is not None
    directory = checkpoints.step_directory(10)
    assert await restored(workers, directory, 1, snapshots.empty()) == snapshots.tensors(1, 10)
    with pytest.raises(CheckpointUnreadable, match="no shard of rank 2"):
        await restored(workers, directory, 2, snapshots.empty())
    with pytest.raises(SnapshotError, match="too few"):
        await restored(workers, directory, 1, snapshots.empty(4500))
    with pytest.raises(CheckpointError, match="holds no complete snapshot"):
        await write(workers, snapshots.empty(), directory)
    assert len(workers.pids) == 1


async def test_a_worker_uses_its_memory_again_from_chunk_to_chunk(
    workers: CheckpointWorkers, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    chunks = 16
    slot = snapshots.slot(0, 1, tensors={"weights": random.randbytes(chunks << 21)}, dtype="bfloat16")
    await write(workers, slot, checkpoints.step_directory(1))
    before = minor_faults(workers.pids[0])
    await write(workers, slot, checkpoints.step_directory(2))
    assert minor_faults(workers.pids[0]) - before < 512 * chunks  # fewer than one new buffer a chunk


def minor_faults(pid: int) -> int:
    """Return the number of pages that a process has got."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


async def test_no_more_workers_are_started_than_allowed_nor_than_there_are_jobs(
    snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    workers = CheckpointWorkers(2, background=False)
    directory = checkpoints.step_directory(10)
    await write(workers, snapshots.slot(0, 10), directory)
    assert len(workers.pids) == 1
    await asyncio.gather(*(write(workers, snapshots.slot(rank, 10), directory, world_size=4) for rank in range(4)))
    assert len(workers.pids) == 2
    pids = workers.pids
    await asyncio.to_thread(workers.close)
    assert not any(map(runs, pids))


async def test_worker_that_is_killed_is_replaced_and_its_job_is_done(
    workers: CheckpointWorkers, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    directory = checkpoints.step_directory(10)
    await write(workers, snapshots.slot(0, 9), checkpoints.step_directory(9))
    (first,) = workers.pids
    os.kill(first, signal.SIGSTOP)
    job = asyncio.create_task(write(workers, snapshots.slot(0, 10), directory))
    await asyncio.sleep(0)
    half_written = directory / f"rank-00000.shard.{os.uname().nodename}.{first}.0.tmp"
    directory.mkdir()
    half_written.touch()
    os.kill(first, signal.SIGKILL)
    await job
    assert workers.pids != [first]
    assert checkpoints.commit_if_complete(10, 1, RUN) is not None
    assert not half_written.exists()


async def test_job_of_two_dead_workers_fails_in_one_line(
    workers: CheckpointWorkers,
    snapshots: Snapshots,
    checkpoints: CheckpointDirectory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/bin/false")
        with pytest.raises(CheckpointError, match=r"worker exited with code 1 .*to write in .*step-00000010") as died:
            await write(workers, snapshots.slot(0, 10), checkpoints.step_directory(10))
        assert "\n" not in str(died.value)
        patched.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(CheckpointError, match="cannot start a checkpoint worker: No such file"):
            await write(workers, snapshots.slot(0, 10), checkpoints.step_directory(10))
    await write(workers, snapshots.slot(0, 10), checkpoints.step_directory(10))


async def test_workers_in_the_background_yield_the_cpu_and_others_do_not(
    workers: CheckpointWorkers, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    foreground = CheckpointWorkers(1, background=False)
    try:
        for step, pool, niceness in [(10, workers, max(10, own)), (20, foreground, own)]:
            await write(pool, snapshots.slot(0, step), checkpoints.step_directory(step))
            (pid,) = pool.pids
            assert os.getpriority(os.PRIO_PROCESS, pid) == niceness
    finally:
        foreground.close()


async def test_a_worker_that_has_to_wait_for_a_core_does_not_compress(
    snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    tensors = {str(number): bytes(8 << 20) for number in range(8)}
    directory = checkpoints.step_directory(10)
    [core, *_] = os.sched_getaffinity(0)
    workers = CheckpointWorkers(1, background=False)
    try:
        await write(workers, snapshots.slot(0, 5), checkpoints.step_directory(5))
        os.sched_setaffinity(workers.pids[0], {core})
        with contextlib.ExitStack() as busy:
            for _ in range(4):
                busy.enter_context(spinning(core))
            await write(workers, snapshots.slot(0, 10, tensors=tensors), directory, compression="auto")
    finally:
        workers.close()
    assert load_index(directory, 0).tensors[-1].codec == "raw"


def test_agent_stays_without_heavy_imports_and_takes_its_workers_along(snapshots: Snapshots, tmp_path: Path) -> None:
    command = [sys.executable, "-c", AGENT, str(snapshots.slot(0, 10)), str(tmp_path / "step-00000010")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pid, *heavy = agent.stdout.readline().split()
        assert heavy == []
        agent.kill()
    wait_until(lambda: not runs(int(pid)), "the worker is gone")


async def test_ten_thousand_tensors_come_back(
    workers: CheckpointWorkers, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    generator = random.Random(3)
    tensors = {f"tensor.{number}": generator.randbytes(number % 50) for number in range(10_000)}
    slot = snapshots.fill(snapshots.empty(8 << 20), 0, 10, tensors=tensors)
    await write(workers, slot, checkpoints.step_directory(10))
    assert checkpoints.commit_if_complete(10, 1, RUN) is not None
    assert await restored(workers, checkpoints.step_directory(10), 0, snapshots.empty(8 << 20)) == tensors


def test_lowered_priority_is_the_calling_threads_alone() -> None:
    niceness: list[int] = []

    def work() -> None:
        lower_priority()
        lower_priority()
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert niceness == [max(before, 10)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def runs(pid: int) -> bool:
    return process_state(pid) not in ("", "Z", "X")


@pytest.mark.soak
async def test_tensor_of_more_than_four_gib_needs_little_memory(
    workers: CheckpointWorkers, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    nbytes = (4 << 30) + 5
    path = snapshots.directory / "sparse.slot"
    with path.open("wb") as file:
        file.write(MAGIC)
        file.truncate(nbytes + (1 << 16))
    await write(workers, snapshots.slot(0, 1), checkpoints.step_directory(1))
    psutil.Process(workers.pids[0]).rlimit(psutil.RLIMIT_DATA, (LITTLE, LITTLE))
    for step in (10, 20):
        with Slot(path) as slot:
            slot.begin(generation=1, step=step, rank=0)
            slot.buffer[DATA_OFFSET + nbytes - 1] = step
            entry = TensorEntry("large", "float32", (nbytes,), DATA_OFFSET, nbytes, (nbytes,), (0,))
            slot.commit(Meta({}, (entry,)), data_bytes=nbytes, persist=True)
        await write(workers, path, checkpoints.step_directory(step), base_step=10 if step == 20 else None)
        assert checkpoints.commit_if_complete(step, 1, RUN) is not None
    assert load_index(checkpoints.step_directory(20), 0).raw_bytes == nbytes
    target = snapshots.directory / "restored.slot"
    with target.open("wb") as file:
        file.write(MAGIC)
        file.truncate(nbytes + (1 << 16))
    directory = checkpoints.step_directory(20)
    await workers.run("restore", directory=directory, rank=0, slot=str(target), generation=2)
    with Slot(target) as found, Slot(path) as slot:
        assert found.meta().tensors == (entry,)
        whole = range(DATA_OFFSET, DATA_OFFSET + nbytes, 64 << 20)
        assert all(found.buffer[at : at + (64 << 20)] == slot.buffer[at : at + (64 << 20)] for at in whole[:-1])
        assert found.buffer[whole[-1] : DATA_OFFSET + nbytes] == slot.buffer[whole[-1] : DATA_OFFSET + nbytes]
