"""Makes replica snapshots of this node's ranks on the leader's command, and sends them to the partner node.

1. The leader names a step ahead. The agent asks its ranks to pin the snapshot of that step.
2. A rank reports its snapshot. A worker process writes it into this node's replica store: compressed, and as the
   difference to the newest full replica snapshot. The rank has its slot back as soon as that is done.
3. A thread sends the file to the partner, within the bandwidth, and again if that fails.
4. Once the partner has verified those of all ranks, the node's state reports the step.

Nothing here waits for a rank, and no rank waits for anything here. Whatever goes wrong, the set of this step is given
up, and the leader names another step.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_agent.processes.containment import BackgroundJobs, Errors
from holdfast_agent.replicas.replica_client import send
from holdfast_agent.replicas.replica_exchange import ReplicaError
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base.processes import lower_priority
from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_checkpoint.format.shard_index import load_index
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_proto.run_key import Seal
from holdfast_proto.snapshot import SnapshotError
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

MOST_DIFFERENCES = 8
"""Replica snapshots that build on a full one. Later ones differ more from it, and are hardly smaller."""
_TRIES = 5
_FIRST_PAUSE_S = 1.0
_LOOK_S = 0.5
_REPORT_PATIENCE_S = 10.0
"""Time for the report about a snapshot, once its rank works on a later step. Copies from a GPU end late."""


@dataclass
class ReplicaCounters:
    """Numbers for /metrics."""

    attempts: int = 0
    failures: int = 0
    sent_bytes: int = 0


@dataclass
class _Target:
    """The step that the leader has named last, and what is done of it."""

    command: store.Replicate
    ranks: frozenset[int]
    world_size: int
    stopped: threading.Event = field(default_factory=threading.Event)
    begun: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    failed: bool = False


class Replicator:
    """Makes and sends the replica snapshots of one node. All methods run on the agent's event loop."""

    def __init__(
        self,
        replicas: ReplicaStore,
        memory: SnapshotMemory,
        seal: Seal,
        errors: Errors,
        *,
        run: str,
        address: str,
        bandwidth: Bandwidth,
        compression: Compression,
        writers: int,
    ) -> None:
        self.counters = ReplicaCounters()
        self._replicas = replicas
        self._memory = memory
        self._seal = seal
        self._run = run
        self._address = address
        self._bandwidth = bandwidth
        self._compression = compression
        self._jobs = BackgroundJobs(errors, "replicas")
        cores = len(os.sched_getaffinity(0))
        self._workers = CheckpointWorkers(max(1, min(writers, cores // 4)), background=True)
        # One thread: the partner gets one file after another, and the bandwidth is that of all of them.
        self._senders = ThreadPoolExecutor(1, "replica-sender", initializer=lower_priority)
        self._target: _Target | None = None
        self._replicated_step: int | None = None
        self._is_failing = False

    def begin(self, command: store.Replicate, ranks: Collection[int], world_size: int) -> bool:
        """Give up what is not done of the step before, drop what is no longer needed, and wait for the ranks.

        Return False if that step is named again, or if its partner is this node itself.
        """
        if self._target is not None and self._target.command.step == command.step:
            return False
        self.give_up()
        self._target = _Target(command, frozenset(ranks), world_size)
        kept_step = command.kept_step if command.HasField("kept_step") else None
        self._replicas.keep(kept_step, command.step)
        if command.address == self._address:  # else what is sent comes back here, and counts as a second copy
            self.fail(command.step, f"{command.partner} has the address of this node, {self._address}, too")
        return not self._target.failed

    def give_up(self) -> None:
        """Stop making and sending: another step is named, or another generation begins."""
        if self._target is not None:
            self._target.stopped.set()
            self._target = None

    def forget(self) -> None:
        """Give up, and forget what this node has replicated: another generation begins."""
        self.give_up()
        self._replicated_step = None

    def fail(self, step: int, reason: str) -> None:
        """Report that there will be no set of ``step``, and release the slots that are pinned for it."""
        target = self._target
        if target is None or target.command.step != step or target.failed:
            return
        if not self._is_failing:  # it may be the same for every step, and one line is enough
            log.warning("there are no replica snapshots of step %d: %s", step, reason)
        self._is_failing = True
        self.counters.failures += 1
        target.failed = True
        target.stopped.set()
        for rank in target.ranks - target.begun:
            self._memory.release_replica(rank, step)

    def taken(self, rank: int, step: int, *, pinned: bool) -> None:
        """Make the replica snapshot of a rank, which reports that it has taken the snapshot of ``step``."""
        target = self._target
        is_wanted = target is not None and target.command.step == step and rank in target.ranks - target.begun
        if target is None or not is_wanted or target.failed:
            if pinned:
                self._memory.release_replica(rank, step)
        elif not pinned:
            self.fail(step, f"rank {rank} has no slot to spare for it")
        else:
            target.begun.add(rank)
            self._jobs.begin(self._make(target, rank))

    async def await_ranks(self, step: int, steps: Callable[[], Mapping[int, int]]) -> None:
        """Wait until all ranks have reported their snapshots of ``step``. Without a report, give the step up.

        ``steps`` returns the step that each rank works on. How long a step takes is no reason to give up.
        """
        silent_s = 0.0
        while (lacking := self._lacking(step)) and silent_s < _REPORT_PATIENCE_S:
            await asyncio.sleep(_LOOK_S)
            present = steps()
            if any(present.get(rank, -1) > step for rank in lacking):
                silent_s += _LOOK_S
        if lacking:
            self.fail(step, f"ranks {sorted(lacking)} have not taken its snapshot")

    def _lacking(self, step: int) -> frozenset[int]:
        target = self._target
        is_wanted = target is not None and target.command.step == step and not target.failed
        return target.ranks - target.begun if target is not None and is_wanted else frozenset()

    def describe(self, message: store.NodeReplicas) -> None:
        """Add to the node's state what is done."""
        if self._target is not None:
            message.wanted_step, message.failed = self._target.command.step, self._target.failed
        if self._replicated_step is not None:
            message.replicated_step = self._replicated_step

    async def _make(self, target: _Target, rank: int) -> None:
        step = target.command.step
        self.counters.attempts += 1
        try:
            try:
                await self._write(target, rank)
            finally:
                self._memory.release_replica(rank, step)
            await self._send(target, rank)
        except (CheckpointError, SnapshotError, ReplicaError, OSError) as error:
            self.fail(step, f"rank {rank}: {error}")
        except Exception:
            self.fail(step, f"rank {rank}: unexpected error of the agent, see its log")
            raise

    async def _write(self, target: _Target, rank: int) -> None:
        """Write a rank's pinned snapshot into this node's replica store."""
        step = target.command.step
        slot = self._memory.pinned_for_replica(rank, step)
        if slot is None:
            raise SnapshotError(f"the snapshot of step {step} is not in its slot any more")
        header = self._memory.header(slot)
        self._replicas.check_room(header.data_bytes if header is not None else 0)
        directory = self._replicas.directory(step)
        base_step = self._replicas.base_for(rank, target.world_size, MOST_DIFFERENCES)
        if base_step is not None and base_step >= step:
            base_step = None  # this step was named before, and its shard is about to be replaced
        await self._workers.run(
            "write_replica",
            directory=directory,
            slot=str(slot),
            run=self._run,
            world_size=target.world_size,
            base_step=base_step,
            compression=self._compression,
        )
        if not await asyncio.to_thread(lambda: self._replicas.note(load_index(directory, rank))):
            raise ReplicaError("what it builds on has been dropped meanwhile")

    async def _send(self, target: _Target, rank: int) -> None:
        """Send a rank's replica snapshot, and note it once all ranks' are there."""
        command = target.command
        transfer = partial(
            send,
            command.address,
            self._seal,
            self._replicas,
            rank,
            command.step,
            bandwidth=self._bandwidth,
            stop=target.stopped,
        )
        for attempt in range(1, _TRIES + 1):
            if target.stopped.is_set():
                return
            try:
                self.counters.sent_bytes += await asyncio.get_running_loop().run_in_executor(self._senders, transfer)
                break
            except ReplicaError as error:
                if target.stopped.is_set():
                    return
                if attempt == _TRIES:
                    raise
                log.info("replica snapshot of rank %d, step %d, is sent again: %s", rank, command.step, error)
                await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
        if target.stopped.is_set():
            return
        target.sent.add(rank)
        if target.sent == target.ranks:
            if self._is_failing:
                log.info("there are replica snapshots again, of step %d", command.step)
            self._replicated_step, self._is_failing = command.step, False

    def close(self) -> None:
        """End everything. What is not sent by now is lost."""
        self.give_up()
        self._senders.shutdown(wait=False, cancel_futures=True)
        self._workers.close()
