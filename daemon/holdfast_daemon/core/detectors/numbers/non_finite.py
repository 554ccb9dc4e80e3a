"""A number that must be finite is not: which one, and which rank saw it first."""

from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.view import StepView
from holdfast_proto.step_quantities import GRADIENT
from holdfast_proto.v1 import store_pb2 as store

_OF_GRADIENTS = ("grad_norm", "update_norm", GRADIENT)


def unexpected(summary: store.StepSummary) -> list[store.NonFinite]:
    """Return what is not finite and should be. A skipped step's gradients are not: that it was skipped says it all."""
    return [one for one in summary.nonfinite if not summary.overflow or one.quantity not in _OF_GRADIENTS]


@dataclass(frozen=True)
class NonFinite(Detector):
    """Reports once in a generation. A rank that saw where its own gradient went bad is the origin."""

    name: ClassVar[str] = "non_finite"

    _reported: bool = False

    def see_step(self, step: StepView) -> DetectorResult:
        """Look for what is not finite and should be."""
        bad = unexpected(step.summary)
        if not bad or self._reported:
            return DetectorResult(self)
        first = min(bad, key=lambda one: (one.quantity != GRADIENT, one.unix_s, one.rank))
        others = [one.quantity for one in bad if one.quantity != GRADIENT]
        if first.quantity == GRADIENT:
            rest = f"; {others[0]} of the run is not finite" if others else ""
            message = (
                f"rank {first.rank} made a gradient that is not finite in {first.module} at step {step.step}{rest}"
            )
        else:
            message = f"{first.quantity} is not finite since step {step.step}, first seen by rank {first.rank}"
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_NON_FINITE,
            culprits=[first.rank],
            message=message,
            step=step.step,
            confidence_ratio=1.0 if first.quantity == GRADIENT or len(bad) == 1 else 0.5,
        )
        return DetectorResult(NonFinite(_reported=True), (Finding(verdict=verdict, proven_step=step.step),))

    def restarted(self, _after_step: int) -> Self:
        """Report again."""
        return type(self)()
