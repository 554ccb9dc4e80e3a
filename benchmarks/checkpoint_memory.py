"""Measure how much memory of its own a checkpoint worker needs, whatever the size of the state.

Writes a state of one tensor as a full checkpoint and another as the difference to it. Then restores the second one. All
the time it reads the worker's anonymous memory (RssAnon of /proc/PID/status). Exits with 1 above 100 MiB.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_checkpoint.format.shard_index import load_index, slot_bytes_needed
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import DATA_OFFSET, Meta, Slot, TensorEntry, allocate

LIMIT_MIB = 100
RUN = "memory"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="MiB of the state (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="folder for the files (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=arguments.folder) as folder:
        return asyncio.run(measure(Path(folder), arguments.mib << 20))


async def measure(folder: Path, nbytes: int) -> int:
    workers = CheckpointWorkers(1, background=False)
    checkpoints = CheckpointDirectory(folder / "checkpoints", kept=2)
    slot = folder / "slot"
    allocate(slot, nbytes + (1 << 16))
    worst = 0.0
    for step, base_step in ((1, None), (2, 1)):
        fill(slot, nbytes, step)
        directory = checkpoints.step_directory(step)
        job = workers.run("write", directory=directory, slot=str(slot), run=RUN, world_size=1, base_step=base_step)
        worst = max(worst, await peak_mib(workers, job, "write" if base_step is None else "write a difference"))
        checkpoints.commit_if_complete(step, 1, RUN)
    index = load_index(checkpoints.step_directory(2), 0)
    assert index.base is not None
    assert slot.stat().st_size == slot_bytes_needed(index)
    job = workers.run("restore", directory=checkpoints.step_directory(2), rank=0, slot=str(slot), generation=2)
    worst = max(worst, await peak_mib(workers, job, "restore"))
    workers.close()
    return int(worst > LIMIT_MIB)


def fill(path: Path, nbytes: int, step: int) -> None:
    """Fill the slot with a snapshot of weights that move a little from step to step."""
    generator = np.random.default_rng(1)
    with Slot(path) as slot:
        slot.begin(generation=1, step=step, rank=0)
        for start in range(0, nbytes, 1 << 20):
            weights = generator.standard_normal(1 << 18, dtype=np.float32) * np.float32(1 + step * 1e-6)
            slot.buffer[DATA_OFFSET + start : DATA_OFFSET + start + (1 << 20)] = weights.tobytes()
        entry = TensorEntry("weights", "float32", (nbytes // 4,), DATA_OFFSET, nbytes, (nbytes // 4,), (0,))
        slot.commit(Meta({}, (entry,)), data_bytes=nbytes, persist=True)


async def peak_mib(workers: CheckpointWorkers, job: Coroutine[Any, Any, None], what: str) -> float:
    """Await a job; print and return the peak of its worker's anonymous memory."""
    task = asyncio.create_task(job)
    peak_kib = 0
    while not task.done():
        await asyncio.wait([task], timeout=0.005)
        for pid in workers.pids:
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            peak_kib = max([peak_kib, *(int(line.split()[1]) for line in status if line.startswith("RssAnon"))])
    await task
    print(f"{what:20} {peak_kib / 1024:6.0f} MiB")
    return peak_kib / 1024


if __name__ == "__main__":
    sys.exit(main())
