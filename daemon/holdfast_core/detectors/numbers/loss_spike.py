"""The loss has jumped and stays up: see loss_watch.py for when."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.numbers.loss_watch import (
    SPIKE_OF,
    SPIKE_STEPS,
    LossReading,
    LossWatch,
    schedule_begins_anew,
)
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class LossSpike(Detector):
    """Reports once in an episode; counts single outlying steps as blips."""

    name: ClassVar[str] = "loss_spike"

    zscore: float = 0.0
    """Of the newest loss."""
    blip: LossReading | None = None
    """The newest step's, if its loss is outlying outside of a spike."""
    _watch: LossWatch = field(default_factory=LossWatch)
    _learning_rate: float = 0.0
    """Newest that was reported; 0: none."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Judge the loss against its own past."""
        rate = step.summary.learning_rate or self._learning_rate
        before = self._watch.with_new_level() if schedule_begins_anew(self._learning_rate, rate) else self._watch
        watch, reading = before.observe(step.step, step.loss)
        zscore = self.zscore if step.loss is None else reading.zscore
        anomalies = ("blip",) * reading.blip + ("spike",) * reading.spike
        finding = (_finding(step, reading),) if reading.spike else ()
        blip = reading if reading.blip and not watch.in_spike else None
        return DetectorResult(LossSpike(zscore, blip, watch, rate), finding, anomalies)

    def restarted(self, after_step: int) -> Self:
        """Keep what is known of the steps up to ``after_step``."""
        return type(self)(_watch=self._watch.resumed(after_step))


def _finding(step: StepView, reading: LossReading) -> Finding:
    detail = store.LossSpikeDetail(
        loss=step.loss,
        level=reading.level,
        zscore=reading.zscore,
        high_steps=SPIKE_STEPS,
        of_steps=SPIKE_OF,
        resumed_after=reading.resumed_after,
        since_step=reading.since_step,
    )
    verdict = store.Verdict(kind=store.VERDICT_KIND_LOSS_SPIKE, step=step.step, confidence_ratio=1.0, loss_spike=detail)
    return Finding(verdict=verdict, proven_step=reading.proven_step)
