"""Brings replica snapshots into the slots of this node's ranks: its own ones, or those that other nodes hold."""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from holdfast_agent.checkpoints.restorer import StartingPoint
from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_agent.replicas.replica_client import fetch
from holdfast_agent.replicas.replica_exchange import ReplicaError
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base.processes import AgentError
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.format.shard_index import slot_bytes_needed
from holdfast_proto.run_key import Seal
from holdfast_proto.snapshot import SnapshotError
from holdfast_proto.v1 import store_pb2 as store

_TRIES = 3
_PAUSE_S = 1.0


class ReplicaRestorer:
    """Fetches, verifies and unpacks replica snapshots before the ranks of a generation start."""

    def __init__(self, replicas: ReplicaStore, memory: SnapshotMemory, seal: Seal) -> None:
        self._replicas = replicas
        self._memory = memory
        self._seal = seal
        self.failed_generation = 0
        """Newest generation whose replica snapshots could not be loaded; 0: none."""

    async def starting_point(
        self, start: store.StartGeneration, ranks: Sequence[int], generation: int
    ) -> StartingPoint:
        """Unpack the replica snapshots of ``ranks`` that a command names into slots.

        Raises AgentError if one is missing or damaged. What is in the slots stays until all are here.
        """
        try:
            return await self._starting_point(start, ranks, generation)
        except AgentError:
            self.failed_generation = generation
            raise

    async def _starting_point(
        self, start: store.StartGeneration, ranks: Sequence[int], generation: int
    ) -> StartingPoint:
        holders = {holder.rank: holder.address for holder in start.replica_holders}
        stop = threading.Event()
        try:
            await asyncio.gather(*(self._find(rank, start, holders, stop) for rank in ranks))
        finally:
            stop.set()  # threads outlive a start that fails or is given up, and the agent waits for them
        self._memory.keep_only(-1, ranks)
        # No rank runs now, so the workers need not yield to anybody.
        workers = CheckpointWorkers(max(1, min(len(ranks), len(os.sched_getaffinity(0)))), background=False)
        try:
            jobs = [self._unpack(workers, rank, start, generation, len(ranks)) for rank in ranks]
            unpacked = await asyncio.gather(*jobs)
        finally:
            await asyncio.to_thread(workers.close)
        return StartingPoint(dict(zip(ranks, unpacked, strict=True)))

    async def _find(
        self, rank: int, start: store.StartGeneration, holders: Mapping[int, str], stop: threading.Event
    ) -> None:
        """Bring the replica snapshot of a rank to this node, unless it is here."""
        step, generation = start.step, start.replica_generation
        if await asyncio.to_thread(self._replicas.find, rank, step, generation) is not None:
            return
        if rank not in holders:
            raise AgentError(f"no node is known that holds a replica snapshot of rank {rank}, step {step}")
        bring = partial(fetch, holders[rank], self._seal, self._replicas, rank, step, generation=generation, stop=stop)
        reasons: list[ReplicaError] = []
        while len(reasons) < _TRIES and not stop.is_set():
            try:
                await asyncio.to_thread(bring)
                return
            except ReplicaError as error:
                reasons.append(error)
            if len(reasons) < _TRIES:
                await asyncio.sleep(_PAUSE_S)  # the holder may be busy: its ranks have just ended
        first = reasons[0] if reasons else "the start is given up"
        raise AgentError(f"the replica snapshot of rank {rank}, step {step}, cannot be fetched: {first}")

    async def _unpack(
        self, workers: CheckpointWorkers, rank: int, start: store.StartGeneration, generation: int, ranks_on_node: int
    ) -> Path:
        """Unpack the replica snapshot of a rank, and return the slot. A damaged one is never used again."""
        index = await asyncio.to_thread(self._replicas.find, rank, start.step, start.replica_generation)
        if index is None:
            raise AgentError(f"the replica snapshot of rank {rank}, step {start.step}, has been dropped")
        grant = await asyncio.to_thread(self._memory.grant, rank, slot_bytes_needed(index), ranks_on_node)
        if not grant.paths:
            raise AgentError(f"rank {rank} has no slot to restore into: {grant.reason}")
        try:
            await workers.run(
                "restore_replica",
                directory=self._replicas.directory(start.step),
                rank=rank,
                slot=str(grant.paths[0]),
                generation=generation,
            )
        except (CheckpointError, SnapshotError) as error:
            if isinstance(error, CheckpointUnreadable):  # else it may be sound: workers end when one of them fails
                self._replicas.drop(rank, start.step)
            raise AgentError(f"the replica snapshot of rank {rank} cannot be used: {error}") from error
        return grant.paths[0]
