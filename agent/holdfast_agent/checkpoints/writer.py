"""Has pinned slots turned into checkpoints by workers in the background, and checkpoints back into slots."""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_agent.checkpoints.loader import StartingPoint, slot_for
from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_agent.metrics.families import STALL_BUCKETS_S, STEP_BUCKETS_S
from holdfast_agent.metrics.histogram import Histogram
from holdfast_agent.snapshots.held_slots import HeldSlots
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.codec.registry import Compression
from holdfast_checkpoint.errors import (
    CheckpointCommitted,
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
)
from holdfast_checkpoint.format.history import HistoryRecord
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, load_manifest
from holdfast_checkpoint.priority import lower_priority
from holdfast_checkpoint.store.locations import Checkpoints
from holdfast_checkpoint.store.remote_histories import RemoteHistories
from holdfast_checkpoint.store.retries import Retries
from holdfast_checkpoint.store.secondary import Secondary
from holdfast_proto.snapshot import Header, SlotState
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

_Fetch = Callable[[int, Collection[int] | None], Path]
_Source = Checkpoints | RemoteHistories

FULL_EVERY = 8
REFRESH_S = 5.0
_COMMIT_LOOK_S = 0.2
_UPLOADS = 4
"""At once, of up to 32 MiB of memory each."""


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
    of the cores writes, but at most ``writers`` processes do; they compress as ``compression`` says.
    """

    def __init__(
        self,
        memory: SnapshotMemory,
        directory: Checkpoints,
        run: str,
        emit: Callable[[store.Event], None],
        *,
        full_every: int = FULL_EVERY,
        compression: Compression = Compression.AUTO,
        writers: int = 1,
        secondary: Secondary | None = None,
        takes_over: bool = False,
        known: KnownCheckpoints | None = None,
    ) -> None:
        if full_every < 1:
            raise ValueError(f"--checkpoint-full-every {full_every}: give 1 (all can be read alone) or more")
        self._memory = memory
        self.held = HeldSlots(memory)
        self._directory = directory
        self.secondary = secondary
        self._run = run
        self._emit = emit
        self._full_every = full_every
        self._compression = compression
        self._workers = CheckpointWorkers(max(1, min(writers, _cores() // 4)), idle=True)
        # One thread: two jobs may find the set complete at once, and it is told once.
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=lower_priority)
        self._pending: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._failed_steps: set[int] = set()
        self._began: dict[int, float] = {}
        self._uploads = ThreadPoolExecutor(_UPLOADS, "checkpoint-upload", initializer=lower_priority)
        self._own: list[int] = []
        self._vanished: set[int] = set()
        self._known = known or KnownCheckpoints(str(directory.path))
        self._started_from = -1
        self.committed: list[int] = []
        """Steps of checkpoints that a run can start from, those of the secondary included."""
        self.damaged: list[int] = []
        """Steps whose manifest is there and does not read back."""
        self.newest_generation = 0
        """That wrote the newest checkpoint."""
        self._look_first(takes_over=takes_over)
        self.counters = WriterCounters()

    @property
    def path(self) -> Path:
        """Local folder in which shards are written and read."""
        return self._directory.path

    @property
    def store_retries(self) -> Retries | None:
        """Of the object store that holds the checkpoints; None if a folder does."""
        return self._directory.store_retries

    def _look_first(self, *, takes_over: bool) -> None:
        """See what is committed. For ranks that train already a store that is away is no reason to end."""
        try:
            self._look()
        except CheckpointError as error:
            if not takes_over:
                raise
            log.warning("what is committed is seen at the next checkpoint: %s", error)

    def _look(self) -> None:
        """See what is committed. Raises CheckpointError if that cannot be told: what was seen before stays."""
        own = self._directory.committed()
        damaged = self._directory.damaged()
        committed = self.secondary.restorable(own) if self.secondary is not None else own
        history = self._directory.history
        self._known.check_history(history)
        vanished = self._known.vanished(history, {*committed, *damaged}, self._directory.kept)
        if committed:
            self.newest_generation = self._manifest(committed[-1], own).generation
        # What has vanished is still to be chosen: the start then waits for it, and takes nothing older instead.
        self._own, self.committed, self.damaged = own, sorted({*committed, *vanished}), damaged
        self._vanished = vanished
        self._known.note(history, {*committed, *damaged, *vanished})

    def _manifest(self, step: int, own: Sequence[int]) -> Manifest:
        if self.secondary is not None and step not in own:
            return self.secondary.remote.load_manifest(step)
        return self._directory.load_manifest(step)

    @property
    def history(self) -> int:
        """Number of the history to which the next checkpoint belongs."""
        return self._directory.history

    async def begin_history(self, history: store.History) -> None:
        """Go on in ``history``, and begin it if no other node has. Raises CheckpointError."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._begin_history, history)

    def _begin_history(self, history: store.History) -> None:
        if history.number > self._directory.history:
            self._look()  # another node may have begun it
        if history.number > self._directory.history:
            record = HistoryRecord(
                number=history.number,
                run=self._run,
                parent=history.parent,
                parent_step=history.parent_step,
                since_unix_s=history.since_unix_s,
            )
            self._directory.begin(record)
            self._known.enter(history.number, history.parent_step)
            self._failed_steps.clear()
            self._look()

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
        """Write what a rank pinned before it could say so, and see to it that it need not keep what is written."""
        for path in self._memory.slots(rank):
            header = self._memory.header(path)
            if header is None or not header.persist or header.state is not SlotState.COMPLETE:
                continue
            if not header.written:
                self.schedule(rank, header.step, world_size)
            elif header.step in self.committed:
                self.held.release(header.step)
            else:
                self.held.wait(header.step)

    async def _write(self, rank: int, step: int, world_size: int) -> None:
        loop = asyncio.get_running_loop()
        slot = self._memory.slot_holding(rank, step)
        header = self._memory.header(slot) if slot is not None else None
        is_pinned = header is not None and header.persist and not header.written
        try:
            if header is not None and is_pinned:  # a report that comes twice finds it written
                base_step = await loop.run_in_executor(self._thread, self._base, header, world_size)
                await self._workers.run(
                    "write",
                    directory=self._directory.step_directory(step),
                    slot=str(slot),
                    run=self._run,
                    world_size=world_size,
                    base_step=base_step,
                    compression=self._compression,
                )
                await loop.run_in_executor(self._uploads, self._directory.publish, step, rank)
                await loop.run_in_executor(self._thread, self._commit, step, world_size)
        except CheckpointCommitted as error:
            log.info("rank %d: %s", rank, error)
        except CheckpointError as error:
            if self._memory.slot_holding(rank, step) == slot:
                self._fail(step, str(error))
            else:
                log.info("checkpoint of step %d is withdrawn: the run went back before it", step)
        finally:
            del self._pending[rank, step]
            if is_pinned:
                began_s = self._began.get(step, time.monotonic())
                self.held.hold(rank, step, took_s=time.monotonic() - began_s)

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
        if manifest is None or step in self._own:
            return
        self._look()
        if self.secondary is not None:
            self.secondary.look()
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
            await loop.run_in_executor(self._thread, self._directory.keep, step, reason)
        except CheckpointError as error:
            log.error("checkpoint of step %d cannot be kept: %s", step, error)
            failed = store.CheckpointFailed(step=step, reason=f"it cannot be kept: {error}")
            self._emit(store.Event(checkpoint_failed=failed))

    def committed_directory(self, step: int) -> Path | None:
        """Return the directory of the checkpoint of ``step``, if one is known to be committed and is on this node."""
        directory = self._directory.step_directory(step)
        return directory if step in self.committed and (directory / MANIFEST).exists() else None

    async def starting_point(self, step: int, ranks: Sequence[int], world_size: int, generation: int) -> StartingPoint:
        """Verify a committed checkpoint and, if a world of this size wrote it, put it into slots.

        What is damaged or missing is fetched again where it came from, and then from the secondary. Raises
        CheckpointUnreadable naming the file and the tensor, or the other run; CheckpointUnavailable if that may pass:
        a file is missing, or a store cannot be reached.
        """
        # Ranks whose layout is another than that of the slots need all shards. Their first start shows that.
        share = None if self._started_from == step else ranks
        self._started_from = step
        if self.secondary is not None and step not in self._own:
            await self._look_again()
        damage: CheckpointUnreadable | None = None
        absence: CheckpointUnavailable | None = None
        for place, fetch in self._sources(step):
            try:
                manifest = await asyncio.to_thread(place.load_manifest, step)
                self._check_run(manifest)
                needed = share if manifest.world_size == world_size else None
                directory = await asyncio.to_thread(fetch, step, needed)
                return await self._read(directory, ranks, world_size, generation)
            except CheckpointUnreadable as error:
                log.warning("checkpoint of step %d: %s", step, error)
                damage = damage or error
            except CheckpointError as error:
                log.warning("checkpoint of step %d: %s", step, error)
                # The secondary need not have it: there may be fewer, or it was not copied yet.
                is_of_no_copy = isinstance(error, CheckpointUnavailable) and isinstance(place, RemoteHistories)
                if not is_of_no_copy or damage is None:
                    absence = absence or CheckpointUnavailable(str(error))
        if absence is not None:  # what is there may still be good
            raise CheckpointUnavailable(f"{absence}{self._known.way_out}") if step in self._vanished else absence
        assert damage is not None
        raise damage

    def _sources(self, step: int) -> list[tuple[_Source, _Fetch]]:
        """Return where a checkpoint can be had from, and how; the next one is for when that is damaged."""
        sources: list[tuple[_Source, _Fetch]] = []
        if self.secondary is None or step in self._own:
            sources.append((self._directory, self._directory.fetch))
            if self._directory.store_retries is not None:
                sources.append((self._directory, functools.partial(self._directory.fetch, again=True)))
        if self.secondary is not None:
            sources.append((self.secondary.remote, self.secondary.fetch))
        return sources

    def _check_run(self, manifest: Manifest) -> None:
        if manifest.run not in {self._run, *self._directory.runs}:
            raise CheckpointUnreadable(
                f"{self._directory.step_directory(manifest.step)}: written by run {manifest.run}, "
                f"this is run {self._run}: use its --run name to go on with it, or another --checkpoints directory"
            )

    async def _read(self, directory: Path, ranks: Sequence[int], world_size: int, generation: int) -> StartingPoint:
        manifest = await asyncio.to_thread(load_manifest, directory)
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

    async def _look_again(self) -> None:
        """See what other nodes have committed just now. Raises CheckpointUnavailable."""
        try:
            await asyncio.to_thread(self._look)
        except CheckpointError as error:
            raise CheckpointUnavailable(str(error)) from error

    async def refresh(self) -> None:
        """Look, for ever, for checkpoints that other nodes have committed."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await asyncio.to_thread(self._look)
            except CheckpointError as error:
                log.warning("the checkpoints cannot be listed: %s", error)

    async def drain(self, patience_s: float) -> None:
        """Wait for writes and copies under way, but not longer than ``patience_s``."""
        deadline_s = time.monotonic() + patience_s
        if self._pending:
            await asyncio.wait(list(self._pending.values()), timeout=patience_s)
        for _, step in self._pending:
            self._fail(step, f"it was not written within {patience_s:.0f} s after the end of the run")
        if self.secondary is not None:
            await self._see_committed(deadline_s)
            await asyncio.to_thread(self.secondary.wait, max(0.0, deadline_s - time.monotonic()))

    async def _see_committed(self, deadline_s: float) -> None:
        """Wait until other nodes have written their shards of the last checkpoint: it is to be copied, too."""
        last = max(self._began.keys() - self._failed_steps, default=-1)
        while last > max(self._own, default=-1) and time.monotonic() < deadline_s:
            await asyncio.sleep(_COMMIT_LOOK_S)
            with contextlib.suppress(CheckpointError):  # the store is away: it is looked at again
                await asyncio.to_thread(self._look)

    def close(self) -> None:
        """End the workers. What is not written by now will not be."""
        self._directory.close()
        if self.secondary is not None:
            self.secondary.close()
        self._workers.close()
        for threads in (self._uploads, self._thread):
            threads.shutdown(wait=True, cancel_futures=True)


def _cores() -> int:
    """Return how many cores this node's processes may use."""
    return len(os.sched_getaffinity(0))
