"""The loss has jumped and stays up: see loss.py for when."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, Seen, Sight
from holdfast_daemon.core.detectors.view import StepView
from holdfast_daemon.core.loss import LossFinding, LossWatch
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class LossSpike(Detector):
    """Tells once in an episode; counts single outlying steps as blips."""

    name: ClassVar[str] = "loss_spike"

    zscore: float = 0.0
    """Of the newest loss."""
    _watch: LossWatch = field(default_factory=LossWatch)

    def see_step(self, step: StepView) -> Sight:
        """Judge the loss against its own past."""
        watch, finding = self._watch.observe(step.step, step.loss)
        zscore = self.zscore if step.loss is None else finding.zscore
        anomalies = tuple(kind for kind in ("blip", "spike") if getattr(finding, kind))
        seen = (_seen(step, finding),) if finding.spike else ()
        return Sight(LossSpike(zscore, watch), seen, anomalies)

    def restarted(self, _after_step: int) -> Self:
        """Begin a new baseline."""
        return type(self)()


def _seen(step: StepView, finding: LossFinding) -> Seen:
    message = (
        f"loss spike at step {step.step}: {step.loss:.4g}, {finding.zscore:.0f} robust standard"
        " deviations above its median, in 3 of 5 steps"
    )
    verdict = store.Verdict(kind=store.VERDICT_KIND_LOSS_SPIKE, message=message, step=step.step, confidence_ratio=1.0)
    return Seen(verdict=verdict, proven_step=finding.proven_step)
