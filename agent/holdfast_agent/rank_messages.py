"""Takes in the messages of ranks: reports, requests for slots, acknowledgements."""

import asyncio
import time
from collections.abc import Callable

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank
from holdfast_agent.reports.message_checks import clean_report, clean_witness_report, flaw_of_slots
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

_SLOTS_BY_DEFAULT = 3
"""Slots of a rank that does not say how many it needs: always enough."""
_LAUNCHER_PAUSE_S = 0.2
"""Least time between two messages of a launcher. A flood of them would push other events out of the queue."""


class RankMessages:
    """Folds the messages of ranks into the node. Nothing in one rank's message reaches another rank."""

    def __init__(self, node: Node, checkpoints: NodeCheckpoints, emit: Callable[[store.Event], None]) -> None:
        self._node = node
        self._memory = checkpoints.memory
        self._saver = checkpoints.saver
        self._replicator = checkpoints.replicator
        self._emit = emit
        self._deaf_until_s = 0.0
        """Time until which a launcher is not heard."""

    async def receive(self, rank: Rank, message: session.RankMessage) -> None:
        """Fold in one message of a rank of the newest generation. Parts that make no sense are refused."""
        if rank.generation != self._node.generation:
            return
        with self._node.errors.contained("rank_messages"):
            match message.WhichOneof("kind"):
                case "report":
                    now_unix_s = time.time()
                    clean_report(message.report, self._node.start.world_size, self._refuse, now_unix_s=now_unix_s)
                    self._report(rank, message.report, now_unix_s)
                case "slot_request":
                    await self._grant_slots(rank, message.slot_request)
                case "ack":
                    rank.channel.acknowledge(message.ack)
                case "profile_done":
                    rank.channel.profile_done(message.profile_done)
                case _:
                    self._refuse("a message of a kind that does not belong here")

    def hear_launcher(self, said: session.WitnessWords) -> None:
        """Pass on what another launcher says of its ranks."""
        node = self._node
        if not node.observes or said.run != node.spec.run:
            self._refuse("words of a launcher that has not started this run")
            return
        now_s = time.monotonic()
        if now_s < self._deaf_until_s:
            self._refuse("words of a launcher that come too fast")
            return
        self._deaf_until_s = now_s + _LAUNCHER_PAUSE_S
        clean_witness_report(said, self._refuse)
        if said.words:
            self._emit(store.Event(generation=node.generation, witness_words=said))

    def _refuse(self, reason: str) -> None:
        self._node.errors.refuse("rank_messages", reason)

    def _report(self, rank: Rank, report: session.Report, now_unix_s: float) -> None:
        node = self._node
        node.reports_total += 1
        is_first_step = rank.steps_done == 0 and bool(report.steps)
        steps = rank.new_steps(report)
        rank.apply(report, now_unix_s)
        if is_first_step or report.HasField("last_words"):
            node.changed.set()  # this step may end a recovery; these last words may begin a cascade of failures
        for step in steps:
            node.step_durations.observe(step.duration_s)
            for summary in node.summaries.add(rank.rank, step, dp=rank.coordinates.get("dp", 0)):
                self._emit(store.Event(generation=node.generation, step_summary=summary))
        if numbers := node.logged.of(rank.rank, report.logged):
            logged = store.NumbersLogged(numbers=numbers)
            self._emit(store.Event(generation=node.generation, numbers_logged=logged))
        for snapshot in report.snapshots:
            node.snapshots_total += 1
            self._saver.counters.stalls.observe(snapshot.stall_s)
            if snapshot.persist:
                self._saver.schedule(rank.rank, snapshot.step, node.start.world_size)
            if self._replicator is not None:
                self._replicator.taken(rank.rank, snapshot.step, pinned=snapshot.replica)
        node.learned_modules.update(report.modules)

    def greeting(self, rank: Rank) -> list[session.AgentMessage]:
        """Return the messages that a rank gets first: its slots, if it has any, and the state that it starts from.

        A rank that waits for its state gets both once the state is prepared: that may replace its slots.
        """
        start = self._node.start_from(rank)
        if rank.awaits_start and start is None:
            return []
        paths = self._memory.slots(rank.rank)
        grant = session.SlotGrant(paths=[str(path) for path in paths], on_disk=self._memory.on_disk)
        messages = [session.AgentMessage(slot_grant=grant)] if paths else []
        if start is not None:
            messages.append(session.AgentMessage(start_from=start))
            rank.awaits_start = False
        return messages

    def give_start(self) -> None:
        """Send the ranks that wait for it the state that they start from, if it is prepared."""
        waiting = [rank for rank in self._node.ranks.values() if rank.awaits_start and self._node.given is not None]
        for rank in waiting:
            for message in self.greeting(rank):
                rank.channel.send(message)

    def refuse_start(self, reason: str) -> None:
        """End the wait of all ranks for a state: there will be none."""
        for rank in self._node.ranks.values():
            if rank.awaits_start:
                rank.channel.send(session.AgentMessage(start_from=session.StartFrom(refusal=reason)))

    async def _grant_slots(self, rank: Rank, request: session.SlotRequest) -> None:
        flaw = flaw_of_slots(request)
        if flaw:
            self._refuse(flaw)
            _answer(rank, session.SlotGrant(reason=flaw))
            return
        was_on_disk = self._memory.on_disk
        try:
            grant = await asyncio.to_thread(
                self._memory.grant,
                rank.rank,
                request.bytes_per_slot,
                self._node.start.ranks,
                request.slots or _SLOTS_BY_DEFAULT,
                extra=int(self._node.replicates),
            )
        except Exception as error:
            # A rank without slots trains on; a rank without an answer waits for one.
            _answer(rank, session.SlotGrant(reason=f"the agent could not create them: {error!r}"))
            raise
        if (grant.on_disk and not was_on_disk) or not grant.paths:
            refused = store.SnapshotMemoryRefused(
                needed_bytes=grant.needed_bytes,
                free_bytes=grant.free_bytes,
                directory=str(self._memory.shm_directory),
            )
            self._emit(store.Event(generation=self._node.generation, snapshot_memory_refused=refused))
        paths = [str(path) for path in grant.paths]
        _answer(rank, session.SlotGrant(paths=paths, on_disk=grant.on_disk, reason=grant.reason))


def _answer(rank: Rank, grant: session.SlotGrant) -> None:
    rank.channel.send(session.AgentMessage(slot_grant=grant))
