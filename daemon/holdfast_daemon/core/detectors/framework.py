"""What a detector is.

A detector is an immutable value with a name. It is shown every tick, every finished step, or both, and answers with its
next state and what it has seen. It does nothing else: what becomes of a verdict is for others to say.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from holdfast_daemon.core.detectors.view import StepView, View
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict, and what is known beside it."""

    verdict: store.Verdict
    last_progress_unix_s: float | None = None
    """Of the culprits; None: when the verdict was reached."""
    stands_still: bool = False
    """The ranks are there and do not move: their stacks and recorders tell more."""
    proven_step: int | None = None
    """The state at the end of any step before this one is good; None: nothing speaks against any state."""


@dataclass(frozen=True)
class DetectorResult:
    """A detector's answer."""

    next: "Detector"
    """The detector as of now."""
    findings: tuple[Finding, ...] = ()
    anomalies: tuple[str, ...] = ()
    """What is worth a counter and no incident, by name."""


class Detector(Protocol):
    """See the module. Implementations are frozen dataclasses that inherit from here what they need not do."""

    name: ClassVar[str]
    """Unique; labels the detector's metrics."""

    def see_tick(self, _view: View) -> DetectorResult:
        """Look at the state of all ranks, several times a second while they run."""
        return DetectorResult(self)

    def see_step(self, _step: StepView) -> DetectorResult:
        """Look at the numbers of a step that all ranks have finished. Steps come in order."""
        return DetectorResult(self)

    def restarted(self, _after_step: int) -> Self:
        """Return the detector for a new generation that goes on after a step; steps after it are undone."""
        return self


def findings_of(verdict: store.Verdict | None) -> tuple[Finding, ...]:
    """Return what a verdict alone tells: nothing if there is none."""
    return () if verdict is None else (Finding(verdict=verdict),)
