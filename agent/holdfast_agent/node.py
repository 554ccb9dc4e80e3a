"""The state of a node as its agent sees it: the newest generation, its ranks, and the state that the daemon reads."""

import asyncio
import contextlib
import os
import time

from holdfast_agent.agent_options import AgentOptions
from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_agent.checkpoints.restorer import StartingPoint
from holdfast_agent.devices.node_devices import NodeDevices
from holdfast_agent.metrics.families import STEP_BUCKETS_S
from holdfast_agent.processes import training_thread
from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.kernel_log import names_our_pids
from holdfast_agent.processes.rank import Rank
from holdfast_agent.processes.replacements import has_replacement
from holdfast_agent.replicas.replica_service import ReplicaService
from holdfast_agent.reports.message_checks import clean_hello
from holdfast_agent.reports.summaries import LoggedNames, StepSummaries
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base import processes
from holdfast_base.metric_family import Histogram
from holdfast_proto.left_out import to_messages
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

_LEAST_LEAVE_S = 0.001
"""Least time in the node's state until the node leaves; 0 would mean that the node stays."""


class Node:
    """The state of one node. All methods run on the agent's event loop, and none blocks.

    ``memory`` and ``inventory`` are read for the node's state alone.
    """

    check: store.NodeCheck | None = None
    """The newest check of this node; None: there was none."""

    def __init__(
        self,
        options: AgentOptions,
        spec: store.RunSpec,
        memory: SnapshotMemory,
        inventory: CheckpointInventory,
        numbers_start: int,
    ) -> None:
        self.options = options
        self.spec = spec
        self._memory = memory
        self._inventory = inventory
        self.errors = Errors()
        self.replicas: ReplicaService | None = None
        """Its replica snapshots; None: it makes and takes none."""
        self.generation = 0
        """Newest generation on this node; 0: none was started."""
        self.fence = 0
        """Highest fencing number of a command that this node has obeyed."""
        self.start = store.StartGeneration()
        """The command that has started the newest generation."""
        self.given: StartingPoint | None = None
        """The state that the ranks of another launcher start from; None: it is not chosen, or not prepared, yet."""
        self.restored_generation = 0
        """Newest generation of the run whose state its ranks have got; 0: none. Those that wait are of a later one."""
        self.ranks: dict[int, Rank] = {}
        """Rank number -> rank of the newest generation."""
        self.leave_by_s: float | None = None
        """Monotonic time at which this node leaves the run; None: it stays."""
        self.failed_generation = 0
        """Newest generation that could not be started; 0: none."""
        self.failure = ""
        """Why that generation could not be started."""
        self.refused_ranks = ""
        """Why ranks of an observed run cannot be watched; empty: none was refused for that."""
        self.awaits_files = False
        """Whether files of its checkpoint could not be read, and may come back."""
        self.clock_s = 0.0
        """Seconds that this agent has run. Time in which it was paused does not count."""
        self.reports_total = 0
        self.tree_look_attempts_total = 0
        self.tree_look_failures_total = 0
        self.snapshots_total = 0
        self.step_durations = Histogram(STEP_BUCKETS_S)
        self.learned_modules: set[str] = set()
        """Modules that ranks imported in their first steps. The warm parent imports them before the next fork."""
        self.changed = asyncio.Event()
        """Set when the state must be published before the next regular time."""
        self.summaries = StepSummaries(0, 0)
        """Step summaries of the newest generation."""
        self.logged = LoggedNames()
        """Names under which ranks of the newest generation log numbers."""
        self.devices = NodeDevices(pids_are_ours=names_our_pids())
        """The GPUs of the node."""
        self.numbers_start = numbers_start
        """First number of this agent's states and events; each agent of the node has a larger one."""
        self.command_number = 0
        """Number of the newest command that was carried out, of the leader with ``fence``."""

    @property
    def observes(self) -> bool:
        """Whether another launcher starts the ranks. The agent then watches them: see commands/command_runner.py."""
        return not self.spec.command

    @property
    def saves(self) -> bool:
        """Whether Holdfast saves and restores the state of the ranks."""
        return not self.observes or self.spec.restores

    @property
    def replicates(self) -> bool:
        """Whether the run makes replica snapshots. A rank then has one slot more, if there is room."""
        is_asked = self.spec.replicate_every_s > 0 and self.spec.snapshot_every > 0
        return is_asked and self.spec.nodes > 1 and self.saves

    @property
    def pids(self) -> dict[int, int]:
        """Rank number -> pid of the ranks of the newest generation."""
        return {rank.rank: rank.pid for rank in self.ranks.values()}

    @property
    def stopped(self) -> bool:
        """Whether no rank of the newest generation is alive."""
        return not any(rank.is_alive for rank in self.ranks.values())

    @property
    def is_quiet(self) -> bool:
        """Whether all its ranks train: none starts, stands still or ends, and the node does not leave."""
        return bool(self.ranks) and self.leave_by_s is None and all(rank.trains for rank in self.ranks.values())

    def must_look(self, lookers: int) -> bool:
        """Return whether this node looks at the run's checkpoints itself: one of the first does, and so does one whose
        ranks do not train."""
        return self.start.first_rank < lookers * self.start.ranks or not self.is_quiet

    def start_from(self, rank: Rank) -> session.StartFrom | None:
        """Return the state from which a rank of another launcher starts, or None if it is not known yet."""
        if self.given is None:
            return None
        return session.StartFrom(
            generation=self.restored_generation,
            step=-1 if self.start.source == store.SOURCE_SEED else self.start.step,
            slot=str(self.given.slots.get(rank.rank, "")),
            checkpoint=str(self.given.checkpoint or ""),
            left_out=self.start.left_out,
        )

    def ranks_of_world(self) -> tuple[range, int]:
        """Return the ranks of this node and the size of their world; an empty range before the first generation."""
        start = self.start
        return range(start.first_rank, start.first_rank + start.ranks), start.world_size

    def begin_generation(self, generation: int, start: store.StartGeneration) -> None:
        """Replace the ranks of the last generation by those of a new one, which has none yet."""
        self.generation = generation
        self.start = start
        self.given = None
        self.ranks = {}
        self.summaries = StepSummaries(generation, start.ranks)
        self.logged = LoggedNames()

    def admit(self, hello: session.Hello) -> Rank | None:
        """Return the rank that opens a session, or None if it does not belong to the newest generation."""
        rank = self.ranks.get(hello.rank)
        if rank is None or hello.run != self.spec.run or hello.generation != self.generation:
            return None
        clean_hello(hello, lambda reason: self.errors.refuse("rank_messages", reason))
        if rank.is_fresh and hello.world_size != self.start.world_size:
            rank.launched_world_size = hello.world_size
        rank.welcome(hello)
        return rank

    def pass_time(self, elapsed_s: float) -> None:
        """Add ``elapsed_s``, in which this agent ran, to the stalls of all ranks; look at their processes."""
        self.clock_s += elapsed_s
        for rank in self.ranks.values():
            with self.errors.contained("tick"):
                rank.pass_time(elapsed_s)
                self._look_at(rank)

    @staticmethod
    def _look_at(rank: Rank) -> None:
        """Read the state of a rank's process from the kernel.

        Without a free descriptor the last one stays, but not what its thread does: times that do not grow with its
        steps would make a healthy rank a straggler.
        """
        if rank.is_alive and not rank.held_for_stacks:
            try:
                thread = training_thread.look_at(rank.pid, rank.thread_id)
                is_main = rank.thread_id == rank.pid  # then both states are of one task, and one file has them
                rank.look(thread.state if is_main else processes.process_state(rank.pid), thread)
            except OSError:
                rank.thread = training_thread.ThreadStatus(busy_s=rank.thread.busy_s)

    def state(self, *, ready: bool) -> store.NodeState:
        """Return the state that the agent publishes for the daemon."""
        ranks = list(self.ranks.values())
        return store.NodeState(
            run=self.spec.run,
            node=self.options.node,
            generation=self.generation,
            fence=self.fence,
            stopped=self.stopped,
            ranks=[state for rank in ranks if (state := self._state_of(rank)) is not None],
            checkpoints=self._inventory.committed,
            checkpoint_generation=self._inventory.newest_generation,
            reported_unix_s=time.time(),
            agent_pid=os.getpid(),
            ready=ready,
            instance=self.spec.instance,
            incarnation=self.numbers_start,
            failed_generation=self.failed_generation,
            failure=self.failure,
            history=self._inventory.history,
            checkpoints_are_old=self._inventory.is_old,
            damaged_checkpoints=self._inventory.damaged,
            awaits_files=self.awaits_files,
            leave_in_s=self._leave_in_s(),
            world_size=self.start.world_size,
            refused_ranks=self.refused_ranks,
            relaunched=self.observes and has_replacement(ranks),
            restored_generation=self.restored_generation,
            restarts_left=min((left for rank in ranks if (left := rank.restarts_left) is not None), default=None),
            left_out=to_messages(self._inventory.left_out),
            replicas=None if self.replicas is None else self.replicas.state(),
            check=self.check,
        )

    def _state_of(self, rank: Rank) -> store.RankState | None:
        """Return a rank's state. If that fails, return the last one: a rank without a state would seem lost."""
        with self.errors.contained("tick"):
            with contextlib.suppress(OSError):
                rank.snapshots = self._memory.complete_steps(rank.rank)
            rank.last_state = rank.state(rank.snapshots)
            if self.given is not None:
                rank.last_state.awaits_start = False  # it has said Hello late, and hears its state with the welcome
            gpu = self.devices.state_of(rank) if rank.is_alive else None
            if gpu is not None:
                rank.last_state.gpu.CopyFrom(gpu)
        return rank.last_state

    def _leave_in_s(self) -> float:
        return 0.0 if self.leave_by_s is None else max(_LEAST_LEAVE_S, self.leave_by_s - time.monotonic())
