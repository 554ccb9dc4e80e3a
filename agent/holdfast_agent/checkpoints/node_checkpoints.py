"""The snapshots and checkpoints of one node, and the state that the ranks of a generation start from."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_agent.checkpoints.restorer import CheckpointRestorer, StartingPoint
from holdfast_agent.checkpoints.shard_saver import ShardSaver
from holdfast_agent.replicas.replica_service import ReplicaService
from holdfast_agent.replicas.replicator import Replicator
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base.processes import AgentError
from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class NodeCheckpoints:
    """Everything that an agent needs to keep, write and restore the state of its ranks."""

    memory: SnapshotMemory
    inventory: CheckpointInventory
    saver: ShardSaver
    restorer: CheckpointRestorer
    replicas: ReplicaService | None = None
    """None: the node makes and takes no replica snapshots."""

    @property
    def replicator(self) -> Replicator | None:
        """What makes replica snapshots; None: nothing does."""
        return None if self.replicas is None else self.replicas.replicator

    async def starting_point(
        self, start: store.StartGeneration, ranks: Sequence[int], generation: int
    ) -> StartingPoint:
        """Prepare the state that ``ranks`` start from in a generation. None of them may have trained in it.

        Raises AgentError if a snapshot is missing, CheckpointError or SnapshotError if a checkpoint cannot be loaded.
        """
        if start.HasField("history"):
            await self.saver.begin_history(start.history)
        if self.replicas is not None:
            self.replicas.begin_generation(-1 if start.source == store.SOURCE_SEED else start.step)
        if start.source == store.SOURCE_REPLICA:
            return await self._from_replicas(start, ranks, generation)
        if start.source == store.SOURCE_SEED:
            self.memory.keep_only(-1, ranks)
            return StartingPoint()
        self.memory.keep_only(start.step, ranks)
        if self.inventory.is_old:
            # What is in memory does not need the folder.
            with suppress(*() if start.source == store.SOURCE_CHECKPOINT else (CheckpointError,)):
                await asyncio.to_thread(self.inventory.look)
        if start.source == store.SOURCE_CHECKPOINT:
            return await self.restorer.starting_point(start.step, ranks, start.world_size, generation)
        point = self.point_in_memory(start, ranks)
        missing = [rank for rank in ranks if rank not in point.slots]
        if missing:
            raise AgentError(f"ranks {missing} have no snapshot of step {start.step} in memory")
        return point

    def point_in_memory(self, start: store.StartGeneration, ranks: Sequence[int]) -> StartingPoint:
        """Return the state of ``ranks`` as far as it is prepared already: that of some may not be in memory."""
        if start.source == store.SOURCE_SEED:
            return StartingPoint()
        slots = {rank: self.memory.slot_holding(rank, start.step) for rank in ranks}
        # An earlier start may have unpacked these slots from a checkpoint, for a layout that differs from the ranks'.
        # Such ranks load from the checkpoint itself.
        checkpoint = self.inventory.local_directory(start.step)
        return StartingPoint({rank: slot for rank, slot in slots.items() if slot is not None}, checkpoint)

    async def _from_replicas(
        self, start: store.StartGeneration, ranks: Sequence[int], generation: int
    ) -> StartingPoint:
        if self.replicas is None:
            raise AgentError("this node takes no replica snapshots: see its log")
        return await self.replicas.restorer.starting_point(start, ranks, generation)

    def adopt(self) -> None:
        """Take over the snapshots, of this node and of its partner, that an earlier agent of the node has left."""
        self.memory.adopt()
        if self.replicas is not None:
            self.replicas.replicas.adopt()

    def remove_snapshots(self) -> None:
        """Remove all snapshots from memory."""
        if self.replicas is not None:
            self.replicas.replicas.remove_all()
        self.memory.remove_all()

    def close(self) -> None:
        """Close all places and end the workers. Shards that are not written by now are lost."""
        if self.replicas is not None:
            self.replicas.close()
        self.inventory.close()
        self.saver.close()
