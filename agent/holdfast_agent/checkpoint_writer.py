"""Has pinned slots turned into checkpoints by workers in the background, and checkpoints back into slots."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_agent.checkpoint import CheckpointDirectory
from holdfast_agent.checkpoint_workers import CheckpointWorkers
from holdfast_agent.histogram import STALL_BUCKETS_S, STEP_BUCKETS_S, Histogram
from holdfast_agent.priority import lower_priority
from holdfast_agent.restore import StartingPoint, slot_for
from holdfast_agent.snapshot_memory import SnapshotMemory
from holdfast_proto.checkpoint.errors import CheckpointError, CheckpointUnreadable
from holdfast_proto.checkpoint.keeping import keep
from holdfast_proto.snapshot import Header, SlotState
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

FULL_EVERY = 8
REFRESH_S = 5.0


@dataclass
class WriterCounters:
    """For /metrics."""

    attempts: int = 0
    failures: int = 0
    last_success_unix_s: float = 0.0
    raw_bytes: int = 0
    stored_bytes: int = 0
    durations: Histogram = field(default_factory=lambda: Histogram(STEP_BUCKETS_S))
    stalls: Histogram = field(default_factory=lambda: Histogram(STALL_BUCKETS_S))


class CheckpointWriter:
    """Writes this node's shards and commits a checkpoint if it finds the set of all ranks complete.

    Every ``full_every``-th checkpoint is a full one, those between are stored as differences to it. A quarter
    of the cores writes, but at most ``writers`` processes do.
    """

    def __init__(
        self,
        memory: SnapshotMemory,
        directory: CheckpointDirectory,
        run: str,
        emit: Callable[[store.Event], None],
        *,
        full_every: int = FULL_EVERY,
        writers: int = 1,
    ) -> None:
        if full_every < 1:
            raise ValueError(f"--checkpoint-full-every {full_every}: give 1 (all can be read alone) or more")
        self._memory = memory
        self._directory = directory
        self._run = run
        self._emit = emit
        self._full_every = full_every
        self._workers = CheckpointWorkers(max(1, min(writers, _cores() // 4)), idle=True)
        # One thread: two jobs may find the set complete at once, and it is told once.
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=lower_priority)
        self._pending: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._failed_steps: set[int] = set()
        self._began: dict[int, float] = {}
        self.committed: list[int] = []
        self.newest_generation = 0
        """That wrote the newest checkpoint."""
        self._look()
        self.counters = WriterCounters()

    def _look(self) -> None:
        """See what is committed. Raises CheckpointUnreadable if the directory cannot be read."""
        self.committed = self._directory.committed()
        if self.committed:
            self.newest_generation = self._directory.load_manifest(self.committed[-1]).generation

    def schedule(self, rank: int, step: int, world_size: int) -> None:
        """Write the shard of ``rank`` from the slot pinned for ``step``, unless that is under way."""
        if (rank, step) not in self._pending:
            self._began.setdefault(step, time.monotonic())
            task = asyncio.get_running_loop().create_task(self._write(rank, step, world_size))
            self._pending[rank, step] = task

    def persist(self, rank: int, step: int, world_size: int) -> None:
        """Write a checkpoint's shard from a snapshot in memory that was not meant for one."""
        self._memory.pin(rank, step)
        self.schedule_pinned(rank, world_size)

    def schedule_pinned(self, rank: int, world_size: int) -> None:
        """Write what a rank pinned before it could say so."""
        for path in self._memory.slots(rank):
            header = self._memory.header(path)
            if header is not None and header.persist and header.state is SlotState.COMPLETE:
                self.schedule(rank, header.step, world_size)

    async def _write(self, rank: int, step: int, world_size: int) -> None:
        loop = asyncio.get_running_loop()
        slot = self._memory.slot_holding(rank, step)
        header = self._memory.header(slot) if slot is not None else None
        try:
            if header is not None and header.persist:  # a report that comes twice finds it written
                base_step = await loop.run_in_executor(self._thread, self._base, header, world_size)
                await self._workers.run(
                    "write",
                    directory=self._directory.step_directory(step),
                    slot=str(slot),
                    run=self._run,
                    world_size=world_size,
                    base_step=base_step,
                )
                await loop.run_in_executor(self._thread, self._commit, step, world_size)
        except CheckpointError as error:
            if self._memory.slot_holding(rank, step) == slot:
                self._fail(step, str(error))
            else:
                log.info("checkpoint of step %d is withdrawn: the run went back before it", step)
        finally:
            self._memory.release(rank, step)
            del self._pending[rank, step]

    def _base(self, header: Header, world_size: int) -> int | None:
        return self._directory.base_for(
            header.step,
            run=self._run,
            world_size=world_size,
            generation=header.generation,
            full_every=self._full_every,
        )

    def _commit(self, step: int, world_size: int) -> None:
        manifest = self._directory.commit_if_complete(step, world_size=world_size, run=self._run)
        if manifest is None or step in self.committed:
            return
        self._look()
        duration_s = time.monotonic() - self._began.pop(step, time.monotonic())
        self.counters.attempts += 1
        self.counters.last_success_unix_s = time.time()
        self.counters.raw_bytes, self.counters.stored_bytes = manifest.raw_bytes, manifest.stored_bytes
        self.counters.durations.observe(duration_s)
        committed = store.CheckpointCommitted(
            step=step, raw_bytes=manifest.raw_bytes, stored_bytes=manifest.stored_bytes, duration_s=duration_s
        )
        self._emit(store.Event(checkpoint_committed=committed))
        if manifest.stale:
            reason = (
                f"checkpoint of step {step} is bit for bit the one before: the state given to attach() does not change"
            )
            self._fail(step, reason)

    def _fail(self, step: int, reason: str) -> None:
        """Say once per step that there will be no checkpoint of it; training goes on."""
        if step in self._failed_steps:
            return
        self._failed_steps.add(step)
        self.counters.attempts += 1
        self.counters.failures += 1
        log.error("checkpoint of step %d failed: %s", step, reason)
        self._emit(store.Event(checkpoint_failed=store.CheckpointFailed(step=step, reason=reason)))

    async def keep(self, step: int, reason: str) -> None:
        """Keep the checkpoint of ``step`` beyond its time; one line is told if that cannot be done."""
        loop = asyncio.get_running_loop()
        try:
            # On the thread that removes old ones, which then looks either before or after.
            await loop.run_in_executor(self._thread, keep, self._directory.step_directory(step), reason)
        except CheckpointError as error:
            log.error("checkpoint of step %d cannot be kept: %s", step, error)
            failed = store.CheckpointFailed(step=step, reason=f"it cannot be kept: {error}")
            self._emit(store.Event(checkpoint_failed=failed))

    def committed_directory(self, step: int) -> Path | None:
        """Return the directory of the checkpoint of ``step``, if one is known to be committed."""
        return self._directory.step_directory(step) if step in self.committed else None

    async def starting_point(self, step: int, ranks: Sequence[int], world_size: int, generation: int) -> StartingPoint:
        """Verify a committed checkpoint and, if a world of this size wrote it, put it into slots.

        Raises CheckpointUnreadable naming the file and the tensor, or the other run.
        """
        directory = self._directory.step_directory(step)
        manifest = await asyncio.to_thread(self._directory.load_manifest, step)
        if manifest.run != self._run:
            raise CheckpointUnreadable(
                f"{directory}: written by run {manifest.run}, this is run {self._run}:"
                " use its --run name to go on with it, or another --checkpoints directory"
            )
        # No rank runs, so that there is nobody to yield to.
        workers = CheckpointWorkers(max(1, min(len(ranks), _cores())), idle=False)
        try:
            if manifest.world_size != world_size:
                jobs = [
                    workers.run("verify", directory=directory, ranks=[rank], world_size=world_size) for rank in ranks
                ]
                await asyncio.gather(*jobs)
                return StartingPoint(checkpoint=directory)
            slots = await asyncio.to_thread(self._slots_for, directory, ranks)
            jobs = [
                workers.run("restore", directory=directory, rank=rank, slot=str(slot), generation=generation)
                for rank, slot in slots.items()
            ]
            await asyncio.gather(*jobs)
            return StartingPoint(slots, directory)
        finally:
            await asyncio.to_thread(workers.close)

    def _slots_for(self, directory: Path, ranks: Sequence[int]) -> dict[int, Path]:
        return {rank: slot_for(directory, rank, self._memory, ranks_on_node=len(ranks)) for rank in ranks}

    async def refresh(self) -> None:
        """Look, for ever, for checkpoints that other nodes have committed."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await asyncio.to_thread(self._look)
            except CheckpointUnreadable as error:
                log.warning("the checkpoints cannot be listed: %s", error)

    async def drain(self, patience_s: float) -> None:
        """Wait for writes under way, but not longer than ``patience_s``."""
        if self._pending:
            await asyncio.wait(list(self._pending.values()), timeout=patience_s)

    def close(self) -> None:
        """End the workers. What is not written by now will not be."""
        self._workers.close()
        self._thread.shutdown(wait=True, cancel_futures=True)


def _cores() -> int:
    """Return how many cores this node's processes may use."""
    return len(os.sched_getaffinity(0))
