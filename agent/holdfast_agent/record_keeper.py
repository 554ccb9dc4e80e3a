"""Keeps on disk what the next agent of this node must know, should this one die."""

import time

from holdfast_agent.node import Node
from holdfast_agent.processes import agent_record
from holdfast_agent.processes.parent_client import WarmParentClient
from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord

SAVE_PAUSE_S = 5.0


class RecordKeeper:
    """Writes the agent's record, and holds the parts of it that nothing else needs."""

    def __init__(self, node: Node, parent: WarmParentClient) -> None:
        self.last_command = "0"
        """Stream id of the newest command that was carried out, or was given to an agent whose record is lost."""
        self.rendezvous = (0, 0)
        """Pid and start time of the rendezvous store's process; zeros: this node hosts none."""
        self._node = node
        self._parent = parent
        self._is_saved = True
        self._save_again_at = 0.0

    def done(self, stream_id: str) -> None:
        """Remember that a command was carried out: the next agent reads the stream after it."""
        self.last_command = stream_id
        self.save()

    def save(self) -> None:
        """Write the record."""
        node = self._node
        ranks = [
            RankRecord(rank=rank.rank, pid=rank.pid, start_ticks=rank.start_ticks, exit=rank.exit)
            for rank in node.ranks.values()
        ]
        rendezvous_pid, rendezvous_ticks = self.rendezvous
        saved = AgentRecord(
            run=node.spec.run,
            node=node.options.node,
            instance=node.spec.instance,
            generation=node.generation,
            fence=node.fence,
            command_number=node.command_number,
            numbers_start=node.numbers_start,
            restored_generation=node.restored_generation,
            last_command=self.last_command,
            ranks=ranks,
            warm_parent_pid=self._parent.pid,
            warm_parent_start_ticks=self._parent.start_ticks,
            rendezvous_pid=rendezvous_pid,
            rendezvous_start_ticks=rendezvous_ticks,
            spec=node.spec,
            start=node.start,
        )
        self._is_saved = agent_record.save(node.options.record, saved)

    def save_if_due(self) -> None:
        """Retry a write that has failed: the disk was full, or no descriptor was free."""
        if not self._is_saved and time.monotonic() >= self._save_again_at:
            self._save_again_at = time.monotonic() + SAVE_PAUSE_S
            self.save()
