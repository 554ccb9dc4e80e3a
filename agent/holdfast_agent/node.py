"""What an agent knows of its node: its ranks, what they report, what memory they have."""

import asyncio
import contextlib
import os
import time

from holdfast_agent.checkpoints.inventory import CheckpointInventory
from holdfast_agent.metrics.families import STEP_BUCKETS_S
from holdfast_agent.metrics.histogram import Histogram
from holdfast_agent.options import AgentOptions
from holdfast_agent.processes import training_thread
from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.rank import Rank
from holdfast_agent.reports.message_checks import clean_hello
from holdfast_agent.reports.summaries import StepSummaries
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint import processes
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

_LEAST_LEAVE_S = 0.001
"""0 would say that the node stays."""


class Node:
    """The state of one node. Every method runs on the agent's event loop; none blocks."""

    def __init__(
        self,
        options: AgentOptions,
        spec: store.RunSpec,
        memory: SnapshotMemory,
        inventory: CheckpointInventory,
    ) -> None:
        self.options = options
        self.spec = spec
        self._memory = memory
        self._inventory = inventory
        self.errors = Errors()
        self.generation = 0
        self.fence = 0
        self.start = store.StartGeneration()
        """The command that has started the newest generation."""
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
        self.summaries = StepSummaries(0, 0)
        """Step summaries of the newest generation."""
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
        start = self.start
        return range(start.first_rank, start.first_rank + start.ranks), start.world_size

    def begin_generation(self, generation: int, start: store.StartGeneration) -> None:
        """Forget the ranks of the generation before."""
        self.generation = generation
        self.start = start
        self.ranks = {}
        self.summaries = StepSummaries(generation, start.ranks)

    def admit(self, hello: session.Hello) -> Rank | None:
        """Return the rank that says hello, or None if it is not one of this generation's."""
        rank = self.ranks.get(hello.rank)
        if rank is None or hello.run != self.spec.run or hello.generation != self.generation:
            return None
        clean_hello(hello, lambda reason: self.errors.refuse("rank_messages", reason))
        rank.welcome(hello)
        return rank

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
            checkpoints=self._inventory.committed,
            checkpoint_generation=self._inventory.newest_generation,
            reported_unix_s=time.time(),
            agent_pid=os.getpid(),
            ready=ready,
            instance=self.spec.instance,
            incarnation=self._incarnation,
            failed_generation=self.failed_generation,
            failure=self.failure,
            history=self._inventory.history,
            damaged_checkpoints=self._inventory.damaged,
            awaits_files=self.awaits_files,
            leave_in_s=self._leave_in_s(),
            world_size=self.start.world_size if self.observes else 0,
        )

    def _state_of(self, rank: Rank) -> store.RankState | None:
        """Return a rank's state; if it cannot be had, the last that could: a rank that is left out would seem lost."""
        with self.errors.contained("tick"):
            with contextlib.suppress(OSError):
                rank.snapshots = self._memory.complete_steps(rank.rank)
            rank.last_state = rank.state(rank.snapshots)
        return rank.last_state

    def _leave_in_s(self) -> float:
        return 0.0 if self.leave_by_s is None else max(_LEAST_LEAVE_S, self.leave_by_s - time.monotonic())
