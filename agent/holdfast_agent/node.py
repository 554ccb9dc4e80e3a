"""What an agent knows of its node: its ranks, what they report, what memory they have."""

import asyncio
import contextlib
import os
import time

from holdfast_agent.checkpoints.writer import CheckpointWriter
from holdfast_agent.metrics.families import STEP_BUCKETS_S
from holdfast_agent.metrics.histogram import Histogram
from holdfast_agent.options import AgentOptions
from holdfast_agent.processes import training_thread
from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.rank import Rank
from holdfast_agent.reports.message_checks import clean_hello, clean_report, flaw_of_slots
from holdfast_agent.reports.store_link import StoreLink
from holdfast_agent.reports.summaries import StepSummaries
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint import processes
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

_SLOTS_UNSAID = 3
"""For a rank that does not say how many it needs: always enough."""

_LEAST_LEAVE_S = 0.001
"""0 would say that the node stays."""


class Node:
    """The state of one node. Every method runs on the agent's event loop; none blocks."""

    def __init__(
        self,
        options: AgentOptions,
        spec: store.RunSpec,
        link: StoreLink,
        memory: SnapshotMemory,
        writer: CheckpointWriter,
    ) -> None:
        self.options = options
        self.spec = spec
        self.link = link
        self.memory = memory
        self.writer = writer
        self.errors = Errors()
        self.generation = 0
        self.fence = 0
        self.start_order = store.StartGeneration()
        self.ranks: dict[int, Rank] = {}
        self.leave_by_s: float | None = None
        """When this node goes away (monotonic); None: it stays."""
        self.failed_generation = 0
        self.failure = ""
        self.awaits_files = False
        """Whether that generation could not start because files of its checkpoint cannot be read now."""
        self.clock_s = 0.0
        """Seconds in which this agent has run: time in which it was held up does not count."""
        self.reports_total = 0
        self.tree_look_attempts_total = 0
        self.tree_look_failures_total = 0
        self.snapshots_total = 0
        self.step_durations = Histogram(STEP_BUCKETS_S)
        self.learned_modules: set[str] = set()
        """Modules that ranks imported in their first steps: the warm parent imports them ahead."""
        self.changed = asyncio.Event()
        """Set when the daemon should hear of something before the next tick."""
        self.acks: dict[int, asyncio.Future[session.CommandAck]] = {}
        self._command_ids = 0
        self._summaries = StepSummaries(0, 0)
        self._incarnation = time.time_ns()

    @property
    def observes(self) -> bool:
        """Whether somebody else launches the ranks: they are watched, and never touched."""
        return not self.spec.command

    @property
    def stopped(self) -> bool:
        """Whether no rank of the newest generation is alive."""
        return not any(rank.is_alive for rank in self.ranks.values())

    def ranks_of_world(self) -> tuple[range, int]:
        """Return the ranks of this node and the size of their world; no ranks before the first generation."""
        order = self.start_order
        return range(order.first_rank, order.first_rank + order.ranks), order.world_size

    def begin_generation(self, generation: int, order: store.StartGeneration) -> None:
        """Forget the ranks of the generation before."""
        self.generation = generation
        self.start_order = order
        self.ranks = {}
        self.acks = {}
        self._summaries = StepSummaries(generation, order.ranks)

    def admit(self, hello: session.Hello) -> Rank | None:
        """Return the rank that says hello, or None if it is not one of this generation's."""
        rank = self.ranks.get(hello.rank)
        if rank is None or hello.run != self.spec.run or hello.generation != self.generation:
            return None
        clean_hello(hello, self._refuse)
        rank.welcome(hello)
        return rank

    def existing_slots(self, rank: Rank) -> session.SlotGrant | None:
        """Return the slots that a rank has from an earlier generation, if any."""
        paths = self.memory.slots(rank.rank)
        if not paths:
            return None
        return session.SlotGrant(paths=[str(path) for path in paths], on_disk=self.memory.on_disk)

    async def receive(self, rank: Rank, message: session.RankMessage) -> None:
        """Fold in one message of a rank. What makes no sense in it is refused, and never reaches another rank."""
        if rank.generation != self.generation:
            return
        with self.errors.contained("rank_messages"):
            await self._fold_in(rank, message)

    def _refuse(self, reason: str) -> None:
        self.errors.refuse("rank_messages", reason)

    async def _fold_in(self, rank: Rank, message: session.RankMessage) -> None:
        match message.WhichOneof("kind"):
            case "report":
                clean_report(message.report, self.start_order.world_size, self._refuse)
                self._report(rank, message.report)
            case "slot_request":
                await self._grant_slots(rank, message.slot_request)
            case "ack":
                future = self.acks.pop(message.ack.id, None)
                if future is not None and not future.done():
                    future.set_result(message.ack)
            case _:
                self._refuse("a message of a kind that does not belong here")

    def _report(self, rank: Rank, report: session.Report) -> None:
        self.reports_total += 1
        first_steps = rank.steps_done == 0 and report.steps
        steps = rank.new_steps(report)
        rank.apply(report)
        if first_steps or report.HasField("last_words"):
            self.changed.set()  # a recovery may have ended with this step; a cascade of failures has begun
        for step in steps:
            self.step_durations.observe(step.duration_s)
            for summary in self._summaries.add(rank.rank, step, dp=rank.coordinates.get("dp", 0)):
                self.link.emit(store.Event(generation=self.generation, step_summary=summary))
        for snapshot in report.snapshots:
            self.snapshots_total += 1
            self.writer.counters.stalls.observe(snapshot.stall_s)
            if snapshot.persist:
                self.writer.schedule(rank.rank, snapshot.step, self.start_order.world_size)
        self.learned_modules.update(report.modules)

    async def _grant_slots(self, rank: Rank, request: session.SlotRequest) -> None:
        flaw = flaw_of_slots(request)
        if flaw:
            self._refuse(flaw)
            self._answer_slots(rank, session.SlotGrant(reason=flaw))
            return
        was_decided = self.memory.on_disk
        slots = request.slots or _SLOTS_UNSAID
        try:
            grant = await asyncio.to_thread(
                self.memory.grant, rank.rank, request.bytes_per_slot, self.start_order.ranks, slots
            )
        except Exception as error:
            # A rank without slots trains on, one without an answer would wait for it.
            self._answer_slots(rank, session.SlotGrant(reason=f"the agent could not create them: {error!r}"))
            raise
        if (grant.on_disk and not was_decided) or not grant.paths:
            refused = store.SnapshotMemoryRefused(
                needed_bytes=grant.needed_bytes,
                free_bytes=grant.free_bytes,
                directory=str(self.options.shm_directory),
            )
            self.link.emit(store.Event(generation=self.generation, snapshot_memory_refused=refused))
        paths = [str(path) for path in grant.paths]
        self._answer_slots(rank, session.SlotGrant(paths=paths, on_disk=grant.on_disk, reason=grant.reason))

    @staticmethod
    def _answer_slots(rank: Rank, answer: session.SlotGrant) -> None:
        if rank.outbox is not None:
            rank.outbox.put_nowait(session.AgentMessage(slot_grant=answer))

    def command(self, rank: Rank, command: session.RankCommand) -> "asyncio.Future[session.CommandAck]":
        """Send a command to a rank; the future holds its acknowledgement, or is cancelled without a session."""
        self._command_ids += 1
        command.id = self._command_ids
        command.generation = self.generation
        future: asyncio.Future[session.CommandAck] = asyncio.get_running_loop().create_future()
        if rank.outbox is None:
            future.cancel()
        else:
            self.acks[command.id] = future
            rank.outbox.put_nowait(session.AgentMessage(command=command))
        return future

    def pass_time(self, elapsed_s: float) -> None:
        """Age all ranks and look at the state of their processes."""
        self.clock_s += elapsed_s
        for rank in self.ranks.values():
            with self.errors.contained("tick"):
                rank.pass_time(elapsed_s)
                self._look_at(rank)

    @staticmethod
    def _look_at(rank: Rank) -> None:
        """See what the kernel says of a rank. What cannot be seen, for lack of descriptors, stays as it was."""
        if rank.is_alive and not rank.held_for_stacks:
            with contextlib.suppress(OSError):
                rank.look(processes.process_state(rank.pid), training_thread.look_at(rank.pid))

    def state(self, *, ready: bool) -> store.NodeState:
        """Return what the daemon is told."""
        return store.NodeState(
            run=self.spec.run,
            node=self.options.node,
            generation=self.generation,
            fence=self.fence,
            stopped=self.stopped,
            ranks=[state for rank in self.ranks.values() if (state := self._state_of(rank)) is not None],
            checkpoints=self.writer.committed,
            checkpoint_generation=self.writer.newest_generation,
            reported_unix_s=time.time(),
            agent_pid=os.getpid(),
            ready=ready,
            instance=self.spec.instance,
            incarnation=self._incarnation,
            failed_generation=self.failed_generation,
            failure=self.failure,
            history=self.writer.history,
            damaged_checkpoints=self.writer.damaged,
            awaits_files=self.awaits_files,
            leave_in_s=self._leave_in_s(),
            world_size=self.start_order.world_size if self.observes else 0,
        )

    def _state_of(self, rank: Rank) -> store.RankState | None:
        """Return a rank's state; if it cannot be had, the last that could: a rank that is left out would seem lost."""
        with self.errors.contained("tick"):
            with contextlib.suppress(OSError):
                rank.snapshots = self.memory.complete_steps(rank.rank)
            rank.last_state = rank.state(rank.snapshots)
        return rank.last_state

    def _leave_in_s(self) -> float:
        return 0.0 if self.leave_by_s is None else max(_LEAST_LEAVE_S, self.leave_by_s - time.monotonic())
