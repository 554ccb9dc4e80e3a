"""What is known of each rank, and what a diagnosis says."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdfast_core.diagnosis.devices.contradictions import Contradiction
from holdfast_core.diagnosis.devices.rank_calls import RankCalls
from holdfast_core.diagnosis.wait_for_graph import SharedCall
from holdfast_proto.v1 import recorder_pb2 as recorder
from holdfast_proto.v1 import store_pb2 as store


class Place(StrEnum):
    """Where a rank's host is, by its stack."""

    UNKNOWN = "unknown"
    USER_CODE = "user code"
    DATA = "data loading"
    SYNCHRONIZATION = "a wait for its device"
    CALL = "a collective or point-to-point call"
    LAUNCH = "a function of NCCL that launches a call"
    SET_UP = "the set-up of a process group"
    TEAR_DOWN = "the tear-down of process groups"
    ELSEWHERE = "its own code, or a wait for its device there"
    """Python code outside of torch's collectives. Without native frames, a wait for the device looks the same."""


@dataclass(frozen=True)
class Evidence:
    """What is known of one rank."""

    dump: recorder.RecorderDump | None
    """None: the rank left none, which proves nothing."""
    place: Place = Place.UNKNOWN
    is_dead: bool = False
    """Known from outside: its exit was seen."""
    earlier: recorder.RecorderDump | None = None
    """A dump of some time before. A rank that has made or finished a call since then is not stuck."""


class CauseKind(StrEnum):
    """Kind of a cause."""

    MISSING_RANK = "missing_rank"
    """Ranks have not made a call that others wait in, and wait for nothing themselves."""
    DEAD_RANK = "dead_rank"
    MISMATCHED_CALL = "mismatched_call"
    """Ranks made different calls under one number."""
    OPPOSITE_ORDER = "opposite_order"
    """Ranks wait for each other in a circle: calls of two groups in opposite orders, or a call left out."""
    STUCK_DEVICE = "stuck_device"
    """A rank's device does not come to a call that the others' have reached."""
    INSIDE_CALL = "inside_call"
    """A rank's host does not return from making a call."""
    GPU_OR_NETWORK = "gpu_or_network"
    """All ranks have made a call, and it does not complete."""
    UNKNOWN = "unknown"
    NOTHING_PENDING = "nothing_pending"
    MOVING = "moving"
    """The ranks that others wait for make calls: the job is slow at most."""


class Confidence(StrEnum):
    """How sure a cause is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class Cause:
    """One cause of the hang."""

    kind: CauseKind
    ranks: tuple[int, ...]
    """Ranks to look at; empty if no rank is to blame, or nothing shows which."""
    call: SharedCall | None
    """The call in which others wait."""
    confidence: Confidence
    suspects: tuple[int, ...] = ()
    """Ranks of which one may be the cause, where nothing shows which."""

    @property
    def device_cause(self) -> "store.DeviceCause":
        """What only devices know of it; unspecified: hosts have a name for all of it."""
        is_message = self.call is not None and not self.call.seq
        match self.kind:
            case CauseKind.STUCK_DEVICE if self.call is not None and self.call.is_held_alone:
                return store.DEVICE_CAUSE_HELD_ALONE
            case CauseKind.MISMATCHED_CALL if is_message:
                return store.DEVICE_CAUSE_DIFFERENT_SIZES
            case CauseKind.GPU_OR_NETWORK if is_message:
                return store.DEVICE_CAUSE_PENDING_TRANSFER
        return _DEVICE_CAUSES.get(self.kind, store.DEVICE_CAUSE_UNSPECIFIED)

    @property
    def named(self) -> tuple[int, ...]:
        """Ranks that a sentence about it names."""
        if self.call is not None and self.device_cause == store.DEVICE_CAUSE_DIFFERENT_SIZES:
            return self.call.parties
        return self.ranks


_DEVICE_CAUSES = {
    CauseKind.STUCK_DEVICE: store.DEVICE_CAUSE_STUCK_DEVICE,
    CauseKind.INSIDE_CALL: store.DEVICE_CAUSE_INSIDE_CALL,
    CauseKind.OPPOSITE_ORDER: store.DEVICE_CAUSE_OPPOSITE_ORDER,
    CauseKind.UNKNOWN: store.DEVICE_CAUSE_UNKNOWN,
}


@dataclass(frozen=True)
class Wait:
    """A rank that waits for another one in a call."""

    rank: int
    awaited: int
    call: SharedCall
    is_certain: bool


@dataclass(frozen=True)
class Diagnosis:
    """The causes of a hang, the most certain first, and who waits for whom."""

    causes: tuple[Cause, ...]
    waits: tuple[Wait, ...]
    ranks: Mapping[int, RankCalls]
    unread: tuple[int, ...]
    """Ranks of the world without a readable dump."""
    contradictions: tuple[Contradiction, ...] = ()
    """Ranks whose dump was not used, because it does not fit to those of others."""
    has_calls: bool = True
    """Whether any recorder shows calls; else there are only the counters of groups."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """All ranks that the causes name, ascending."""
        return tuple(sorted({rank for cause in self.causes for rank in cause.ranks}))
