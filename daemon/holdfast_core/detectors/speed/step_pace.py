"""How fast a run goes, from the numbers of its steps: one stretch of steps against another."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class StepPace:
    """The numbers of one step, or the medians of several."""

    training_s: float
    """Duration, without evaluation and idling."""
    data_s: float
    checkpoint_s: float
    bubble_s: float
    """Mean over the ranks of the time that their pipeline stage sat idle; 0 if not reported."""
    tokens: float
    """0 if not reported."""
    tokens_per_s: float
    mfu: float
    """Model FLOPs utilisation, mean over ranks; 0 if not reported."""


def pace_of(summary: store.StepSummary) -> StepPace:
    """Return the numbers of a step."""
    phase_s = summary.phase_s
    pauses_s = phase_s.get(common.PHASE_EVAL, 0.0) + phase_s.get(common.PHASE_IDLE, 0.0)
    training_s = max(0.0, summary.duration_s - pauses_s)
    return StepPace(
        training_s=training_s,
        data_s=phase_s.get(common.PHASE_DATA, 0.0),
        checkpoint_s=phase_s.get(common.PHASE_CHECKPOINT, 0.0),
        bubble_s=_mean(summary.pipeline_bubble) * training_s,
        tokens=summary.tokens,
        tokens_per_s=summary.tokens / training_s if training_s else 0.0,
        mfu=_mean(summary.mfu),
    )


def usual_pace(paces: Sequence[StepPace]) -> StepPace:
    """Return the medians of one or more steps: those that checkpoint now and then do not show."""
    return StepPace(
        training_s=_median(paces, lambda pace: pace.training_s),
        data_s=_median(paces, lambda pace: pace.data_s),
        checkpoint_s=_median(paces, lambda pace: pace.checkpoint_s),
        bubble_s=_median(paces, lambda pace: pace.bubble_s),
        tokens=_median(paces, lambda pace: pace.tokens),
        tokens_per_s=_median(paces, lambda pace: pace.tokens_per_s),
        mfu=_median(paces, lambda pace: pace.mfu),
    )


def _mean(mean: store.Mean) -> float:
    return mean.sum / mean.count if mean.count else 0.0


def _median(paces: Iterable[StepPace], number: Callable[[StepPace], float]) -> float:
    return median(number(pace) for pace in paces)
