"""The values that the core takes, keeps and returns: observations, its state, actions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from holdfast_core.accounting.latencies import Latencies
from holdfast_core.accounting.phase_watch import SeenStretch
from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors import registry
from holdfast_core.detectors.framework import Detector
from holdfast_core.world import NodePart
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault
from holdfast_proto.v1.recorder_pb2 import RecorderDump


@dataclass(frozen=True)
class CheckpointRequest:
    """An operator's request for a checkpoint."""


@dataclass(frozen=True)
class StopRequest:
    """An operator's request to end the run: within ``grace_s``, after a last checkpoint; 0: immediately."""

    grace_s: float = 0.0


@dataclass(frozen=True)
class FaultRequest:
    """An operator's request to inject a fault into a rank."""

    fault: Fault


@dataclass(frozen=True)
class StacksRequest:
    """An operator's request for the stacks of live ranks."""

    id: str
    """Unique: agents serve each request once."""
    ranks: tuple[int, ...] = ()
    """Empty: all that are alive."""
    native: bool = False


@dataclass(frozen=True)
class ProfileRequest:
    """An operator's request to profile the next full steps of a rank."""

    id: str
    rank: int
    steps: int
    patience_s: float


@dataclass(frozen=True)
class LauncherEnded:
    """The launcher of an observed run has ended, with an exit code as in a shell."""

    code: int


@dataclass(frozen=True)
class AcknowledgeRequest:
    """An operator says that an incident is known."""

    incident: str
    """Its id."""


@dataclass(frozen=True)
class ReleaseRequest:
    """An operator says that a node may train again."""

    node: str


Request: TypeAlias = (
    CheckpointRequest
    | StopRequest
    | FaultRequest
    | StacksRequest
    | ProfileRequest
    | LauncherEnded
    | AcknowledgeRequest
    | ReleaseRequest
)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the shell has read since the last tick."""

    nodes: Mapping[str, store.NodeState] = field(default_factory=dict)
    """Newest state of every node whose lease is alive, by name."""
    events: tuple[store.Event, ...] = ()
    """New events, in the order of the run's stream."""
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True)
class Send:
    """Append a command to a node's stream. The shell adds id and fence."""

    node: str
    command: store.NodeCommand


@dataclass(frozen=True)
class SaveIncident:
    """Keep the newest version of an incident."""

    incident: store.Incident


@dataclass(frozen=True)
class ForgetIncident:
    """Remove an old incident from the store. Its folder on disk stays."""

    incident: str


@dataclass(frozen=True)
class CheckpointAnswered:
    """Answer a request for a checkpoint: the step at which it will be; -1 if there is none now, with the reason."""

    step: int
    reason: str = ""


@dataclass(frozen=True)
class FaultAnswered:
    """Answer a request to inject a fault."""

    fault: Fault
    refusal: str = ""
    """Reason for which it will not strike; empty: the rank has accepted it."""
    waits_for: str = ""
    """What an accepted fault waits for and may never get; empty: it is bound to strike."""


@dataclass(frozen=True)
class LiveAnswered:
    """Answer a request for stacks or for a profile."""

    id: str
    refusal: str = ""
    """Why there is no answer; empty: there is one."""
    events: tuple[store.Event, ...] = ()
    """What the nodes have sent."""


@dataclass(frozen=True)
class DetectorFailed:
    """Log and count a detector that has raised. It keeps the state that it had."""

    detector: str
    reason: str


@dataclass(frozen=True)
class StepCounted:
    """Keep the numbers of a step in the run's history."""

    summary: store.StepSummary


@dataclass(frozen=True)
class CheckpointCounted:
    """Keep a committed checkpoint in the run's history."""

    event: store.Event


_Kind = TypeVar("_Kind", bound=Detector)

Action: TypeAlias = (
    Send
    | SaveIncident
    | ForgetIncident
    | CheckpointAnswered
    | FaultAnswered
    | LiveAnswered
    | DetectorFailed
    | StepCounted
    | CheckpointCounted
)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Counters of the run since this leader began to watch it. They are exported, and decide nothing."""

    tokens: int = 0
    dropped_tokens: int = 0
    steps: int = 0
    skipped_steps: int = 0
    productive_s: float = 0.0
    lost_s: Mapping[str, float] = field(default_factory=dict)
    lost_steps: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)
    incidents: Mapping[str, int] = field(default_factory=dict)
    anomalies: Mapping[str, int] = field(default_factory=dict)
    suspicions: Mapping[str, int] = field(default_factory=dict)
    """Suspicions by outcome: raised, confirmed, resolved."""
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    """Injected faults by kind."""
    refused_commands: int = 0
    checkpoints: int = 0
    last_checkpoint_unix_s: float = 0.0
    detections: Latencies = field(default_factory=Latencies)
    """Seconds from the last progress to the verdict, of every incident that stopped the run."""
    recoveries: Latencies = field(default_factory=Latencies)
    """Seconds from the last progress to the next completed step, of every recovery."""


def counted(counts: Mapping[str, int], key: str) -> Mapping[str, int]:
    """Return counts with one more of ``key``."""
    return {**counts, key: counts.get(key, 0) + 1}


@dataclass(frozen=True)
class Logged:
    """Newest value of a number that the script logs under a name of its own."""

    value: float
    step: int
    rank: int
    """Rank that has logged it."""
    generation: int


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Newest numbers that the trainer has reported; None: none yet."""

    loss: float | None = None
    loss_step: int = -1
    validation_loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    update_norm: float | None = None
    loss_scale: float | None = None
    mfu: float | None = None
    pipeline_bubble: float | None = None
    balance_loss: float | None = None
    replay_s: float | None = None
    """Time that the newest replayed step took in addition, on the slowest rank."""
    loss_zscore: float = 0.0
    step_s: float = 0.0
    tokens_per_s: float | None = None
    logged: Mapping[str, Logged] = field(default_factory=dict)
    """By name."""


@dataclass(frozen=True)
class Suspicion:
    """A run that seems to stand still: see suspicion.py."""

    id: str
    confirmed: bool = False
    """Whether a verdict has confirmed it. It then lasts until the ranks move."""


@dataclass(frozen=True, kw_only=True)
class Replication:
    """Replica snapshots of one step that the nodes were commanded to make: see replicas.py."""

    step: int
    generation: int
    began_unix_s: float
    sent_unix_s: float
    """Unix time of the newest command, which may be a repetition."""
    looked_unix_s: float
    """Unix time at which the states of all nodes were last looked at."""
    is_over: bool = False
    """Whether all nodes have them, or a node will have none."""
    complete_step: int | None = None
    """Newest step of which every rank's snapshot is on two nodes; None: there is none."""
    failures: int = 0
    """Steps in a row that have failed. The pause before the next one doubles with each after the first."""


@dataclass(frozen=True)
class Launch:
    """Processes that a launcher has started together on one node of an observed run."""

    generation: int
    """The node's own number of the launch. Launchers do not count alike on all nodes."""
    pids: Mapping[int, int]
    """Rank -> pid of the ranks that have said hello."""
    reported_unix_s: float = field(default=0.0, compare=False)
    """Time of the node's newest state when the launch was last one of the present generation, by the node's clock."""

    def continues(self, known: "Launch | None") -> bool:
        """Return whether this is ``known`` as it is now: its number is the same, and no rank was replaced."""
        if known is None or self.generation != known.generation:
            return False
        return all(known.pids.get(rank, pid) == pid for rank, pid in self.pids.items())


@dataclass(frozen=True, kw_only=True)
class LiveRequest:
    """A request for stacks or a profile that some nodes have not answered yet."""

    id: str
    waiting: Mapping[str, store.NodeCommand]
    """Node -> command that it has not answered."""
    began_unix_s: float
    sent_unix_s: float
    until_unix_s: float
    """Unix time at which the request is given up."""
    began_step: int = -1
    """Step that the rank to profile was in."""
    answers: tuple[store.Event, ...] = ()


@dataclass(frozen=True)
class WitnessReport:
    """What a witness from outside has said of ranks, as a line for people."""

    unix_s: float
    line: str
    generation: int
    """Generation of the ranks."""


@dataclass(frozen=True, kw_only=True)
class CoreState:
    """All that the core knows. It is replaced, never changed."""

    spec: store.RunSpec
    record: store.CoordinatorState
    """The part that outlives this leader; never changed, see :meth:`Tick.edit_record`."""
    nodes: Mapping[str, store.NodeState] = field(default_factory=dict)
    parts: Mapping[str, NodePart] = field(default_factory=dict)
    """What was read of the states in ``nodes``."""
    deadlines: Deadlines
    heard_of: Mapping[str, store.NodeState] = field(default_factory=dict)
    """Last state that each node of the run has reported, also if its lease has run out since."""
    missed_unix_s: Mapping[str, float] = field(default_factory=dict)
    """Unix time since which a node of the run is missing, by name."""
    detectors: Mapping[str, Detector] = field(default_factory=registry.fresh)
    """Detectors by name, in the order in which they are asked."""
    suspicion: Suspicion | None = None
    stacks: Mapping[int, store.StackSummary] = field(default_factory=dict)
    """Rank -> summary of its stack, taken at the present suspicion or at the verdict that it led to."""
    recorders: Mapping[int, RecorderDump] = field(default_factory=dict)
    """Rank -> what the recorder of calls on its device showed then."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    totals: Totals = field(default_factory=Totals)
    incidents: Mapping[str, store.Incident] = field(default_factory=dict)
    newest_faults: tuple[store.Event, ...] = ()
    """Newest faults that were injected or refused, for the status."""
    unreported_faults: tuple[store.Event, ...] = ()
    """Newest faults that were injected or refused, and that no incident's story contains yet."""
    witness_words: tuple[WitnessReport, ...] = ()
    """What witnesses have said of ranks, and no incident's story contains yet."""
    first_exit_unix_s: float = 0.0
    """Unix time of the first abnormal exit that was seen in this generation; 0: none."""
    all_stopped_unix_s: float = 0.0
    """Unix time at which all ranks were last seen stopped together; 0: never."""
    several_stopped_unix_s: float = 0.0
    """Unix time at which more than one rank was last seen stopped; 0: never."""
    strays_stopped_unix_s: float = 0.0
    """Unix time of the last command to stop ranks of a node that was replaced."""
    gathered_unix_s: float = 0.0
    """Unix time at which evidence for a suspicion was last gathered."""
    persisted_unix_s: float = 0.0
    """Unix time at which snapshots were last written as a checkpoint because the run seemed to stand still."""
    left_down_by: frozenset[int] = frozenset()
    """Kinds of verdicts that stop the run in this tick, and after which its mode allows no restart."""
    evidence_asked: frozenset[str] = frozenset()
    """Nodes that were last asked for the evidence of an incident; empty: this leader has asked none."""
    evidence_from: frozenset[str] = frozenset()
    """Nodes that have sent the open incident's evidence."""
    sent_unix_s: float = 0.0
    """Unix time at which the commands of the present phase were last sent; 0: not yet."""
    reported_once: Mapping[str, float] = field(default_factory=dict)
    """Key of what has been reported in this generation, and is reported once -> Unix time: see :meth:`Tick.once`."""
    counted_steps: Mapping[str, int] = field(default_factory=dict)
    """Node -> newest step of which it has sent the summary."""
    pending_steps: Mapping[int, store.StepSummary] = field(default_factory=dict)
    """Step -> summary as merged so far, while not all nodes have sent theirs."""
    clock_leads_s: Mapping[str, float] = field(default_factory=dict)
    """Node -> seconds by which its clock is ahead of the leader's, as its newest states have shown."""
    launches: Mapping[str, Launch] = field(default_factory=dict)
    """Node of an observed run -> its launch that belongs to the present generation."""
    earlier_launches: Mapping[str, Launch] = field(default_factory=dict)
    """Node of an observed run -> its launch of an earlier generation, while its ranks have not been replaced."""
    launcher_codes: Mapping[str, int] = field(default_factory=dict)
    """Node of an observed run whose launcher has ended in this generation -> exit code, as in a shell."""
    live_requests: Mapping[str, LiveRequest] = field(default_factory=dict)
    """Requests for stacks and profiles that are not answered yet, by id."""
    wider_since_unix_s: float = 0.0
    """Time since which nodes are ready with which a run that has lost nodes could train; 0: there are none."""
    judged_checks: Mapping[str, float] | None = None
    """Node -> end of its newest check, as of the last decision about which nodes should not train; None: none yet."""
    start_waits_since_unix_s: float = 0.0
    """Time since which a start waits for checks of nodes, or for better nodes; 0: it does not."""
    replication: Replication | None = None
    """Newest replica snapshots that this leader has asked for."""
    watched: tuple[SeenStretch, ...] = ()
    """What the ranks were seen to do since the newest step in the account of the run's time."""

    def detector(self, kind: type[_Kind]) -> _Kind:
        """Return the detector of a class."""
        detector = self.detectors[kind.name]
        assert isinstance(detector, kind)
        return detector

    @property
    def members(self) -> Mapping[str, store.NodeState]:
        """The nodes of the run that report: neither spares nor nodes that were replaced."""
        return {name: self.nodes[name] for name in self.record.nodes if name in self.nodes}

    @property
    def observes(self) -> bool:
        """Whether another launcher starts the ranks."""
        return not self.spec.ranks_per_node

    @property
    def saves(self) -> bool:
        """Whether Holdfast saves and restores the state of the ranks."""
        return not self.observes or self.spec.restores

    @property
    def ends_hung_ranks(self) -> bool:
        """Whether ranks of an observed run that hang are ended, so that its launcher ends or restarts the run."""
        if self.observes and self.spec.on_hang == store.HANG_ACTION_RESTART:
            left = [node.restarts_left for node in self.members.values() if node.HasField("restarts_left")]
            return bool(left) and min(left) > 0
        return self.observes and self.spec.on_hang == store.HANG_ACTION_ABORT

    @property
    def world_size(self) -> int:
        """Number of ranks. The ranks of an observed run report it; until then it is 1."""
        if self.observes:
            present = self.record.generation
            # Nodes that a launcher has left out may still show the size of an earlier world.
            sizes = (node.world_size for node in self.nodes.values() if not present or node.generation == present)
            return max([1, *sizes])
        return (len(self.record.nodes) or self.spec.nodes) * self.spec.ranks_per_node


def ranks_of(nodes: Mapping[str, store.NodeState], generation: int) -> dict[int, store.RankState]:
    """Return all ranks of a generation by number."""
    return {rank.rank: rank for node in nodes.values() if node.generation == generation for rank in node.ranks}


def places_of(state: CoreState, number: int) -> Iterator[tuple[str, store.RankState]]:
    """Yield the node and the state of a rank, as the nodes report it in the newest generation."""
    for name, node in state.nodes.items():
        if node.generation == state.record.generation:
            yield from ((name, rank) for rank in node.ranks if rank.rank == number)


def committed_steps(state: CoreState) -> list[int]:
    """Return the steps of all checkpoints that a node sees, ascending.

    A node that leaves looking to others may still name checkpoints that were removed. It counts if no other one does.
    """
    nodes = [node for node in state.nodes.values() if not node.checkpoints_are_old] or state.nodes.values()
    return sorted({step for node in nodes for step in node.checkpoints})


def present_step(state: CoreState) -> int:
    """Return the newest step that all ranks have completed and that no restart has undone; -1 before the first.

    ``newest_step`` of the record also counts steps that a later generation has yet to repeat.
    """
    record = state.record
    if record.newest_step > record.step_at_restart or record.counts_anew:
        return record.newest_step
    counted = min((state.counted_steps.get(name, -1) for name in record.nodes), default=-1)
    ranks = ranks_of(state.nodes, record.generation).values()
    steps = [rank.exit.step if rank.HasField("exit") else rank.progress.step for rank in ranks]
    reached = min(steps) - 1 if len(steps) == state.world_size else -1
    left = record.left_step if record.HasField("left_step") else -1
    return min(record.newest_step, max(record.resumed_step, counted, reached, left))
