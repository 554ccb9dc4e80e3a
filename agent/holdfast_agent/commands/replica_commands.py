"""Writes snapshots that this node holds as shards of a checkpoint: a world of another size is to start from it.

No rank changes its state now. Each replica snapshot is unpacked into a slot of its own, which is gone once its shard is
written. What is in a rank's slot is written as it is.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.checkpoints.workers import CheckpointWorkers, reason_of_failure
from holdfast_agent.node import Node
from holdfast_agent.processes.containment import BackgroundJobs
from holdfast_agent.replicas.replica_exchange import ReplicaError
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_checkpoint.checkpoint_errors import CheckpointCommitted, CheckpointUnreadable
from holdfast_checkpoint.format.shard_index import slot_bytes_needed
from holdfast_proto.snapshot import allocate
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)


class ReplicaCommands:
    """Carries out PersistReplicas in the background, one command after another."""

    def __init__(self, node: Node, checkpoints: NodeCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._node = node
        self._jobs = BackgroundJobs(node.errors, "commands")
        self._turn = asyncio.Lock()
        self._command: store.PersistReplicas | None = None
        """The command that was given last."""
        self._done: store.PersistReplicas | None = None
        """The command whose shards were written last."""

    def persist(self, command: store.PersistReplicas) -> None:
        """Write the shards of a command. One that is repeated changes nothing: the leader waits for other nodes."""
        if command.ranks and command != self._done and (command != self._command or not self._jobs.running):
            self._command = command
            self._jobs.begin(self._persist(command))

    async def end(self) -> None:
        """Write nothing any more: the next generation is to begin, or the agent ends."""
        await self._jobs.end()

    async def _persist(self, command: store.PersistReplicas) -> None:
        """Write the shards of a command, unless the checkpoint is committed. If that fails, report it."""
        step, saver = command.step, self._checkpoints.saver
        async with self._turn:
            await saver.begin_again(step)
            if step in self._checkpoints.inventory.committed:
                return
            try:
                await self._write_all(command)
                self._done = command
            except CheckpointCommitted as error:
                log.info("%s", error)
            except asyncio.CancelledError:
                saver.give_up(step)
                raise
            except ReplicaError as error:
                saver.fail(step, str(error))
            except Exception as error:  # noqa: BLE001  whatever it is, the leader waits for the answer
                saver.fail(step, reason_of_failure(error))

    async def _write_all(self, command: store.PersistReplicas) -> None:
        ranks = sorted(set(command.ranks))
        # No rank runs now, so the workers need not yield to anybody.
        workers = CheckpointWorkers(max(1, min(len(ranks), len(os.sched_getaffinity(0)))), background=False)
        at_once = self._node.spec.ranks_per_node or max(len(self._node.ranks), 1)
        replicas = self._checkpoints.replicas
        slots = None if replicas is None else _TemporarySlots(replicas.replicas, command.step, at_once)
        jobs = [asyncio.ensure_future(self._write(rank, command, slots, workers)) for rank in ranks]
        try:
            await asyncio.gather(*jobs)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.to_thread(workers.close)
            await asyncio.gather(*jobs, return_exceptions=True)
            if slots is not None:
                await asyncio.to_thread(slots.close, ranks)

    async def _write(
        self,
        rank: int,
        command: store.PersistReplicas,
        slots: "_TemporarySlots | None",
        workers: CheckpointWorkers,
    ) -> None:
        """Write the shard of a rank. A replica snapshot that is damaged is never used again.

        ``slots``: where replica snapshots are unpacked; None: this node takes none.
        """
        step, generation, world_size = command.step, command.generation, command.world_size
        index = None if slots is None else await asyncio.to_thread(slots.replicas.find, rank, step, generation)
        if slots is None or index is None or index.world_size != world_size:
            await self._write_from_memory(rank, command, workers)
            return
        replicas = slots.replicas
        async with slots.one(rank, slot_bytes_needed(index)) as slot:
            try:
                await workers.run(
                    "restore_replica",
                    directory=replicas.directory(step),
                    rank=rank,
                    slot=str(slot),
                    generation=generation,
                )
            except CheckpointUnreadable as error:
                replicas.drop(rank, step)
                raise ReplicaError(f"the replica snapshot of rank {rank} cannot be used: {error}") from error
            await self._checkpoints.saver.write_slot(workers, slot, rank, step, world_size)

    async def _write_from_memory(self, rank: int, command: store.PersistReplicas, workers: CheckpointWorkers) -> None:
        """Write the shard of a rank from a slot, which stays as it is: no rank has its state yet."""
        memory, step = self._checkpoints.memory, command.step
        slot = memory.slot_holding(rank, step)
        header = None if slot is None else memory.header(slot)
        if slot is None or header is None or header.generation < command.generation:
            raise ReplicaError(f"this node has no snapshot of rank {rank} and step {step}")
        await self._checkpoints.saver.write_slot(workers, slot, rank, step, command.world_size)


class _TemporarySlots:
    """Slots next to the replica snapshots of a step, at most ``limit`` at a time, and no more than memory has room for.

    An agent that dies leaves some behind. The next one removes them when it adopts the replica snapshots.
    """

    def __init__(self, replicas: ReplicaStore, step: int, limit: int) -> None:
        self.replicas = replicas
        self._step = step
        self._limit = limit
        self._in_use = 0
        self._freed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._maker = ThreadPoolExecutor(1, "replica-slots")

    @contextlib.asynccontextmanager
    async def one(self, rank: int, nbytes: int) -> AsyncIterator[Path]:
        """Create an empty slot for a rank as soon as there is room for it, and remove it in the end.

        Raises ReplicaError or OSError if there is no room although no other slot is in use.
        """
        async with self._turn:
            await self._make(rank, nbytes)
            self._in_use += 1
        try:
            yield self._path(rank)
        finally:
            self._path(rank).unlink(missing_ok=True)
            self._in_use -= 1
            self._freed.set()

    async def _make(self, rank: int, nbytes: int) -> None:
        while True:
            self._freed.clear()
            if self._in_use < self._limit:
                try:
                    await asyncio.get_running_loop().run_in_executor(self._maker, self._allocate, rank, nbytes)
                    return
                except (ReplicaError, OSError):
                    if not self._in_use and not self._freed.is_set():
                        raise
            await self._freed.wait()

    def _allocate(self, rank: int, nbytes: int) -> None:
        self.replicas.check_room(nbytes)
        allocate(self._path(rank), nbytes)

    def _path(self, rank: int) -> Path:
        return self.replicas.directory(self._step) / f"rank-{rank:05}.slot"

    def close(self, ranks: list[int]) -> None:
        """Remove the slot that was being created when its job ended."""
        self._maker.shutdown(wait=True, cancel_futures=True)
        for rank in ranks:
            self._path(rank).unlink(missing_ok=True)
