"""What a detector is, and the kinds of verdicts by how they are handled.

A detector is an immutable value with a name. It looks at every tick, every finished step, or both, and returns its next
state and what it has found. It does nothing else: ``recovery/`` decides how a finding is handled.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from holdfast_core.detectors.view import StepView, View
from holdfast_core.texts.render import write
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a detector has found: a verdict, and facts that decide how it is handled.

    The verdict's texts are rendered from its detail here, so that no detector writes them.
    """

    verdict: store.Verdict
    last_progress_unix_s: float | None = None
    """Unix time of the culprits' last progress; None: the time of the verdict."""
    stands_still: bool = False
    """Whether the ranks exist and do not move, so that their stacks and recorders are worth gathering."""
    proven_step: int | None = None
    """Step before which every state is good; None: no state is in doubt."""

    def __post_init__(self) -> None:
        """Render the verdict's texts."""
        write(self.verdict)

    @property
    def stops_the_run(self) -> bool:
        """Whether the run does not train, and a new generation may bring it back.

        Steps that wait too long for data are of the same kind as data that never comes, but the run trains.
        """
        kind = self.verdict.kind
        return kind in RECOVERABLE and (self.stands_still or kind != store.VERDICT_KIND_DATA_STALL)


@dataclass(frozen=True)
class Ending:
    """What a detector has reported is over, without a restart."""

    kind: "store.VerdictKind"
    """Of the verdict."""
    what: str
    """Line for the story of its incident."""
    culprits: tuple[int, ...] = ()
    """Of the verdict; empty: of any."""


@dataclass(frozen=True)
class DetectorResult:
    """What one look of a detector leads to."""

    next: "Detector"
    """The detector's next state."""
    findings: tuple[Finding, ...] = ()
    anomalies: tuple[str, ...] = ()
    """Names of counters to raise: oddities that are no incident."""
    endings: tuple[Ending, ...] = ()


class Detector(Protocol):
    """One rule that looks for one kind of trouble.

    Implementations are frozen dataclasses with defaults for all fields. They inherit what they do not need.
    """

    name: ClassVar[str]
    """Unique name; label of the detector's metrics."""

    def see_tick(self, _view: View) -> DetectorResult:
        """Return what the state of all ranks shows. Called several times a second while they run."""
        return DetectorResult(self)

    def see_step(self, _step: StepView) -> DetectorResult:
        """Return what the numbers of a step show that all ranks have finished. Steps come in order."""
        return DetectorResult(self)

    def restarted(self, _after_step: int) -> Self:
        """Return the detector for a new generation that continues after a step; later steps are undone."""
        return self


def findings_of(verdict: store.Verdict | None) -> tuple[Finding, ...]:
    """Return the finding of a verdict that needs no further facts; nothing if there is no verdict."""
    return () if verdict is None else (Finding(verdict=verdict),)


RECOVERABLE = (
    store.VERDICT_KIND_DEAD_RANK,
    store.VERDICT_KIND_HUNG_COLLECTIVE,
    store.VERDICT_KIND_MISMATCHED_ORDER,
    store.VERDICT_KIND_TRANSPORT,
    store.VERDICT_KIND_LOST_NODE,
    store.VERDICT_KIND_DATA_STALL,
    store.VERDICT_KIND_STANDSTILL,
)
"""Kinds in which the run stands still, and a new generation may bring it back."""

HANGS = (
    store.VERDICT_KIND_HUNG_COLLECTIVE,
    store.VERDICT_KIND_MISMATCHED_ORDER,
    store.VERDICT_KIND_TRANSPORT,
    store.VERDICT_KIND_DATA_STALL,
    store.VERDICT_KIND_STANDSTILL,
)
"""Kinds in which the ranks exist and do not move, so that their stacks and recorders show more."""
