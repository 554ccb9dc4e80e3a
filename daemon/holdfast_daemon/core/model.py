"""What the core is fed, what it keeps, what it orders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast_daemon.core.deadlines import Deadlines
from holdfast_daemon.core.detectors import registry
from holdfast_daemon.core.detectors.framework import Detector
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault


@dataclass(frozen=True)
class CheckpointRequest:
    """An operator wants a checkpoint."""


@dataclass(frozen=True)
class StopRequest:
    """An operator wants the run to end: within ``grace_s``, after a last checkpoint, or at once."""

    grace_s: float = 0.0


@dataclass(frozen=True)
class FaultRequest:
    """An operator wants a rank to be harmed."""

    fault: Fault


Request: TypeAlias = CheckpointRequest | StopRequest | FaultRequest


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the shell has seen since the last tick."""

    nodes: Mapping[str, store.NodeState] = field(default_factory=dict)
    """Every node whose lease is alive, whole and newest."""
    events: tuple[store.Event, ...] = ()
    """In the order of the run's stream."""
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True)
class Send:
    """Append a command to a node's stream. The shell adds id and fence."""

    node: str
    command: store.NodeCommand


@dataclass(frozen=True)
class SaveIncident:
    """Keep this newest version of an incident."""

    incident: store.Incident


@dataclass(frozen=True)
class CheckpointAnswered:
    """Tell the operator at which step the checkpoint will be; -1: not now, and why."""

    step: int
    reason: str = ""


@dataclass(frozen=True)
class FaultAnswered:
    """Tell the operator what has become of the order to inject a fault."""

    fault: Fault
    refusal: str = ""
    """Why it will not strike; empty: the rank has accepted it."""


@dataclass(frozen=True)
class DetectorFailed:
    """Log and count it: a detector of ours has raised, and keeps the state that it had."""

    detector: str
    reason: str


Action: TypeAlias = Send | SaveIncident | CheckpointAnswered | FaultAnswered | DetectorFailed


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Counters of the run since this leader began to watch it. Feed /metrics, decide nothing."""

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
    """Raised, confirmed, and resolved by themselves."""
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    """Injected on purpose, by kind."""
    refused_commands: int = 0
    checkpoints: int = 0
    last_checkpoint_unix_s: float = 0.0
    detections_s: tuple[float, ...] = ()
    """Last progress to verdict, of every incident that stopped the run."""
    recoveries_s: tuple[float, ...] = ()
    """Last progress to the next optimizer step."""


def counted(counts: Mapping[str, int], key: str) -> Mapping[str, int]:
    """Return counts with one more of ``key``."""
    return {**counts, key: counts.get(key, 0) + 1}


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Newest numbers of the run."""

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
    loss_zscore: float = 0.0
    step_s: float = 0.0
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class Suspicion:
    """A world that seems to stand still: see suspicion.py."""

    id: str
    confirmed: bool = False
    """By a verdict; it lasts until something moves."""


@dataclass(frozen=True, kw_only=True)
class CoreState:
    """All that the core knows. Replaced, never changed."""

    spec: store.RunSpec
    record: store.CoordinatorState
    """The part that outlives this leader; treated as immutable."""
    nodes: Mapping[str, store.NodeState] = field(default_factory=dict)
    deadlines: Deadlines
    heard_of: Mapping[str, store.NodeState] = field(default_factory=dict)
    """The last that was heard of every node of the run, also of those whose lease has run out."""
    missed_unix_s: Mapping[str, float] = field(default_factory=dict)
    """Since when nodes of the run are missed."""
    detectors: Mapping[str, Detector] = field(default_factory=registry.fresh)
    """By name, in the order in which they are asked."""
    suspicion: Suspicion | None = None
    stacks: Mapping[int, store.StackSummary] = field(default_factory=dict)
    """What stacks taken at the present suspicion, or at the verdict that it led to, say."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    totals: Totals = field(default_factory=Totals)
    incidents: Mapping[str, store.Incident] = field(default_factory=dict)
    newest_faults: tuple[store.Event, ...] = ()
    """That were injected or refused, for operators to see."""
    unreported_faults: tuple[store.Event, ...] = ()
    """Injected or refused, and not yet part of an incident's story."""
    first_exit_unix_s: float = 0.0
    """When the first abnormal exit of this generation was seen; 0: none."""
    all_stopped_unix_s: float = 0.0
    """When all ranks were last seen stopped together; 0: never."""
    several_stopped_unix_s: float = 0.0
    """When more than one rank was last seen stopped; 0: never."""
    strays_stopped_unix_s: float = 0.0
    """When a node that was replaced was last told to stop its ranks."""
    gathered_unix_s: float = 0.0
    """When evidence for a suspicion was last gathered."""
    persisted_unix_s: float = 0.0
    """When the snapshots in memory were last made durable because the world seemed to stand still."""
    evidence_from: frozenset[str] = frozenset()
    """Nodes that have sent the open incident's evidence."""
    sent_unix_s: float = 0.0
    """When the commands of the present phase were last sent."""
    reported_once: frozenset[str] = frozenset()
    """What has been told in this generation and is not to be told again."""
    counted_steps: Mapping[str, int] = field(default_factory=dict)
    """Per node, the newest step whose summary was counted."""
    pending_steps: Mapping[int, store.StepSummary] = field(default_factory=dict)
    """Summaries that not all nodes have sent yet, merged so far."""

    @property
    def members(self) -> Mapping[str, store.NodeState]:
        """The nodes that the run is on, of those heard of: neither spares nor nodes that were replaced."""
        return {name: self.nodes[name] for name in self.record.nodes if name in self.nodes}

    @property
    def observes(self) -> bool:
        """Whether somebody else launches the ranks."""
        return not self.spec.ranks_per_node

    @property
    def world_size(self) -> int:
        """Ranks of the run; of an observed one, as its ranks say: 1 until one has said it."""
        if self.observes:
            return max([1, *(node.world_size for node in self.nodes.values())])
        return self.spec.nodes * self.spec.ranks_per_node


def ranks_of(nodes: Mapping[str, store.NodeState], generation: int) -> dict[int, store.RankState]:
    """Return all ranks of a generation by number."""
    return {rank.rank: rank for node in nodes.values() if node.generation == generation for rank in node.ranks}
