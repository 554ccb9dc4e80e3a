"""The loss has jumped and stays up: see loss_watch.py for when."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.numbers.loss_watch import LossReading, LossWatch
from holdfast_daemon.core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class LossSpike(Detector):
    """Reports once in an episode; counts single outlying steps as blips."""

    name: ClassVar[str] = "loss_spike"

    zscore: float = 0.0
    """Of the newest loss."""
    _watch: LossWatch = field(default_factory=LossWatch)

    def see_step(self, step: StepView) -> DetectorResult:
        """Judge the loss against its own past."""
        watch, reading = self._watch.observe(step.step, step.loss)
        zscore = self.zscore if step.loss is None else reading.zscore
        anomalies = tuple(kind for kind in ("blip", "spike") if getattr(reading, kind))
        finding = (_finding(step, reading),) if reading.spike else ()
        return DetectorResult(LossSpike(zscore, watch), finding, anomalies)

    def restarted(self, _after_step: int) -> Self:
        """Begin a new baseline."""
        return type(self)()


def _finding(step: StepView, reading: LossReading) -> Finding:
    message = (
        f"loss spike at step {step.step}: {step.loss:.4g}, {reading.zscore:.0f} robust standard"
        " deviations above its median, in 3 of 5 steps"
    )
    verdict = store.Verdict(kind=store.VERDICT_KIND_LOSS_SPIKE, message=message, step=step.step, confidence_ratio=1.0)
    return Finding(verdict=verdict, proven_step=reading.proven_step)
