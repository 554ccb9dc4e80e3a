"""Writes the shards of this node's ranks from their pinned slots, and commits complete checkpoints."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_agent.checkpoints.workers import CheckpointWorkers, reason_of_failure
from holdfast_agent.metrics.families import WriterCounters
from holdfast_agent.snapshots.rank_slots import must_be_written
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base.processes import lower_priority
from holdfast_checkpoint.checkpoint_errors import CheckpointCommitted, CheckpointError
from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_checkpoint.format.bad_loss import BadLossRecord
from holdfast_proto.snapshot import Header
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

Emit = Callable[[store.Event], None]
"""Sends an event to the daemon."""

Result = TypeVar("Result")

_COMMIT_LOOK_S = 0.2
_SHORTAGE_LOOK_S = 0.5
"""Pause before another look at a slot that could not be opened for lack of descriptors or memory."""
_RECORD_PATIENCE_S = 30.0
_STEPS_KEPT = 1000
"""Checkpoints that are remembered as begun or failed, the newest: a store may be unreachable for weeks."""
_UPLOADS = 4
"""Concurrent uploads; each takes up to 32 MiB of memory."""


class ShardSaver:
    """Writes this node's shards, and commits a checkpoint when it finds the shards of all ranks complete.

    Every ``full_every``-th checkpoint is a full one; those between are stored as differences from it. At most a quarter
    of the cores writes, in at most ``writers`` processes, which compress as ``compression`` says.
    """

    def __init__(
        self,
        inventory: CheckpointInventory,
        memory: SnapshotMemory,
        emit: Emit,
        *,
        full_every: int,
        compression: Compression,
        writers: int = 1,
    ) -> None:
        if full_every < 1:
            raise ValueError(f"--checkpoint-full-every {full_every}: give 1 (all can be read alone) or more")
        self.counters = WriterCounters()
        self._inventory = inventory
        self._memory = memory
        self._emit = emit
        self._full_every = full_every
        self._compression = compression
        self._workers = CheckpointWorkers(max(1, min(writers, len(os.sched_getaffinity(0)) // 4)), background=True)
        # One thread: two jobs may find the shards complete at the same moment, and the commit is reported once.
        self._commits = ThreadPoolExecutor(1, "checkpoint", initializer=lower_priority)
        self._uploads = ThreadPoolExecutor(_UPLOADS, "checkpoint-upload", initializer=lower_priority)
        self._pending: dict[tuple[int, int], asyncio.Task[None]] = {}
        """Rank and step -> the job that writes that shard."""
        self._failed: set[tuple[int, int]] = set()
        """History and step of the checkpoints whose failure is reported."""
        self._began: dict[int, float] = {}
        """Step -> monotonic time at which its first shard was scheduled."""

    def schedule(self, rank: int, step: int, world_size: int) -> None:
        """Write the shard of ``rank`` from the slot pinned for ``step``, unless a job does that already."""
        if (rank, step) not in self._pending:
            self._note_begin(step)
            task = asyncio.get_running_loop().create_task(self._write(rank, step, world_size))
            self._pending[rank, step] = task

    def _note_begin(self, step: int) -> None:
        self._began.setdefault(step, time.monotonic())
        while len(self._began) > _STEPS_KEPT:  # of checkpoints that another node commits, or nobody does
            del self._began[next(iter(self._began))]

    async def begin_again(self, step: int) -> None:
        """Begin a checkpoint that may have failed before, once no shard of it is being written."""
        if pending := [task for (_, of_step), task in self._pending.items() if of_step == step]:
            await asyncio.wait(pending)
        self._failed.discard((self._inventory.history, step))
        self._note_begin(step)

    def give_up(self, step: int) -> None:
        """Wait no longer for the commit of a checkpoint."""
        self._began.pop(step, None)

    def persist(self, rank: int, step: int, world_size: int) -> None:
        """Write a checkpoint's shard from a snapshot in memory that was not meant for one."""
        self._memory.pin(rank, step)
        self.schedule_pinned(rank, world_size)

    def schedule_pinned(self, rank: int, world_size: int) -> None:
        """Write what a rank has pinned and could not report."""
        try:
            headers = [self._memory.header(path) for path in self._memory.slots(rank)]
        except (OSError, MemoryError) as error:
            # The rank may have ended: without another look, no report would ever have its slot written and released.
            log.warning("the slots of rank %d cannot be read yet: %s", rank, error)
            asyncio.get_running_loop().call_later(_SHORTAGE_LOOK_S, self.schedule_pinned, rank, world_size)
            return
        for header in headers:
            if header is not None and must_be_written(header):
                self.schedule(rank, header.step, world_size)

    async def _write(self, rank: int, step: int, world_size: int) -> None:
        memory = self._memory
        try:
            slot = await self._patiently(rank, lambda: memory.slot_holding(rank, step))
            header = None if slot is None else await self._patiently(rank, lambda: memory.header(slot))
            if slot is None or header is None or not must_be_written(header):
                return  # a report that arrives twice finds the shard written
            try:
                base = partial(self._base, header, world_size)
                await self.write_slot(self._workers, slot, header.rank, header.step, world_size, base=base)
            except CheckpointCommitted as error:
                log.info("rank %d: %s", rank, error)
            except Exception as error:  # noqa: BLE001  whatever it is, the rank must get its slot back
                if await self._patiently(rank, lambda: memory.slot_holding(rank, step)) == slot:
                    self.fail(step, reason_of_failure(error))
                else:
                    log.info("checkpoint of step %d is withdrawn: the run has gone back to an earlier step", step)
            # Each rank gets its slot back by itself. While the shards of other ranks are still being written, ranks may
            # for the moment of a copy have no step in common. Then a restart uses the last checkpoint.
            await self._patiently(rank, lambda: memory.release(rank, step))
        finally:
            del self._pending[rank, step]

    async def write_slot(
        self,
        workers: CheckpointWorkers,
        slot: Path,
        rank: int,
        step: int,
        world_size: int,
        *,
        base: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Write and publish the shard in a slot that does not change; commit the checkpoint if it is the last one.

        ``base`` returns the step of the checkpoint to store differences from, if any. Raises CheckpointError.
        """
        place = self._inventory.primary.at(step)  # first: a history that begins meanwhile must not get this shard
        base_step = await self._in_order(base)
        await workers.run(
            "write",
            directory=place.step_directory(step),
            slot=str(slot),
            run=self._inventory.run,
            world_size=world_size,
            base_step=base_step,
            compression=self._compression,
        )
        await asyncio.get_running_loop().run_in_executor(self._uploads, place.publish, step, rank)
        await self._in_order(lambda: self._commit(step, world_size))

    async def _patiently(self, rank: int, look: Callable[[], Result]) -> Result:
        """Return what ``look`` at the slots of ``rank`` finds, once there are descriptors and memory for it.

        A slot that stayed pinned after a shortage would be the end of all checkpoints: the rank pins one at a time.
        """
        is_first = True
        while True:
            try:
                return look()
            except (OSError, MemoryError) as error:
                if is_first:
                    log.warning("the slots of rank %d cannot be opened, the agent tries again: %s", rank, error)
                is_first = False
                await asyncio.sleep(_SHORTAGE_LOOK_S)

    def _in_order(self, job: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run a job on the one thread that commits and prunes, after those that were given to it before."""
        return asyncio.get_running_loop().run_in_executor(self._commits, job)

    def _base(self, header: Header, world_size: int) -> int | None:
        return self._inventory.primary.at(header.step).base_for(
            header.step,
            run=self._inventory.run,
            world_size=world_size,
            generation=header.generation,
            full_every=self._full_every,
        )

    def _commit(self, step: int, world_size: int) -> None:
        inventory = self._inventory
        manifest = inventory.primary.commit_if_complete(step, world_size=world_size, run=inventory.run)
        if manifest is None or step in inventory.in_primary:
            return
        inventory.look()
        if inventory.secondary is not None:
            inventory.secondary.look()
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
                "it is written, but all its tensors are those of the checkpoint before: give attach() the model and the"
                " optimizer that train. This is all right while the learning rate is 0"
            )
            self.fail(step, reason)

    def fail(self, step: int, reason: str) -> None:
        """Report, once per step, that there will be no checkpoint of it; training continues."""
        checkpoint = (self._inventory.history, step)
        if checkpoint in self._failed:
            return
        self._failed = {*sorted(self._failed)[1 - _STEPS_KEPT :], checkpoint}
        self.counters.attempts += 1
        self.counters.failures += 1
        log.error("checkpoint of step %d failed: %s", step, reason)
        self._emit(store.Event(checkpoint_failed=store.CheckpointFailed(step=step, reason=reason)))

    def report_loss(self, step: int) -> None:
        """Report that the files of a committed checkpoint are gone, though this agent has not pruned it."""
        inventory = self._inventory
        fix = f"mount that place again, or put them back{inventory.known.way_out}"
        reason = f"its files are gone from {inventory.primary.path}: {fix}"
        log.error("checkpoint of step %d: %s", step, reason)
        self._emit(store.Event(checkpoint_failed=store.CheckpointFailed(step=step, reason=reason)))

    async def begin_history(self, history: store.History) -> None:
        """Write the next checkpoints into ``history``. Raises CheckpointError."""
        await self._in_order(lambda: self._inventory.begin_history(history))

    async def keep(self, step: int, reason: str) -> None:
        """Pin the checkpoint of ``step``, so that pruning leaves it. If that fails, report it."""
        try:
            # The thread that also prunes: pruning then runs either before or after, and never during this.
            await self._in_order(lambda: self._inventory.primary.at(step).keep(step, reason))
        except CheckpointError as error:
            log.error("checkpoint of step %d cannot be kept: %s", step, error)
            failed = store.CheckpointFailed(step=step, reason=f"it cannot be kept: {error}")
            self._emit(store.Event(checkpoint_failed=failed))

    async def prove(self, step: int, finite_step: int) -> None:
        """Mark the checkpoint of ``step`` as proven. If that fails, the one that was marked before stays."""
        try:
            await self._in_order(lambda: self._inventory.primary.at(step).prove(step, finite_step))
        except CheckpointError as error:
            log.warning("checkpoint of step %d cannot be marked as proven: %s", step, error)

    async def note_bad_loss(self, bad_loss: store.BadLoss) -> None:
        """Record that the newest checkpoints may hold a bad state: see ``holdfast_checkpoint.format.bad_loss``."""
        record = BadLossRecord(from_step=bad_loss.from_step, reason=bad_loss.reason, since_unix_s=bad_loss.since_unix_s)
        try:
            await asyncio.wait_for(
                self._in_order(lambda: self._inventory.primary.histories.note_bad_loss(record)), _RECORD_PATIENCE_S
            )
        except (CheckpointError, TimeoutError) as error:
            log.error("it cannot be recorded that checkpoints from step %d may be bad: %s", record.from_step, error)

    async def drain(self, patience_s: float) -> None:
        """Wait for writes and copies that have begun, but not longer than ``patience_s``."""
        deadline_s = time.monotonic() + patience_s
        if self._pending:
            await asyncio.wait(list(self._pending.values()), timeout=patience_s)
        for _, step in self._pending:
            self.fail(step, f"it was not written within {patience_s:.0f} s after the end of the run")
        secondary = self._inventory.secondary
        if secondary is not None:
            await self._await_commit(deadline_s)
            await asyncio.to_thread(secondary.wait, max(0.0, deadline_s - time.monotonic()))

    async def _await_commit(self, deadline_s: float) -> None:
        """Wait until other nodes have written their shards of the last checkpoint, because it must be copied too."""
        history = self._inventory.history
        last = max((step for step in self._began if (history, step) not in self._failed), default=-1)
        while last > max(self._inventory.in_primary, default=-1) and time.monotonic() < deadline_s:
            await asyncio.sleep(_COMMIT_LOOK_S)
            with contextlib.suppress(CheckpointError):  # the store is unreachable: the next look may succeed
                await asyncio.to_thread(self._inventory.look)

    def close(self) -> None:
        """End the workers. Shards that are not written by now are lost."""
        self._workers.close()
        for threads in (self._uploads, self._commits):
            threads.shutdown(wait=True, cancel_futures=True)
