"""The run has become slower, or its devices do less of what they could, and it stays so.

The medians of the newest 16 steps are compared with those of the 128 before them (at least 32). The run is slower if

    seconds per step > 1.3 x before, and tokens per second < before / 1.3 (where tokens are reported)

so that neither larger batches, which take longer, nor smaller ones, which do less per second, count; or if

    MFU < 1/2 x before, with as many tokens per step as before, or 10 % fewer at most

It is reported when that has held for 17 steps in a row and for a minute, against the steps before it began. It is
reported again after it has ended: once the steps before are slow ones too, the new pace is the usual one. Seconds are
without evaluation and idling; a checkpoint now and then does not move a median. The likely bottleneck is what makes up
half of the added seconds at least:

    time in the data phase, in checkpoints, or in the pipeline's bubble; else
    busy time of the busiest rank's training thread: computation, and if that has not grown: communication

On GPUs a training thread that waits looks busy: there the last two cannot be separated.

Medians of all numbers would cost more than all else that is done with a step. So two of them are kept up to date, and
the others are computed only if these two allow a drop.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.numbers.sorted_window import SortedWindow
from holdfast_core.detectors.speed.own_time import is_measured
from holdfast_core.detectors.speed.step_pace import StepPace, pace_of, usual_pace
from holdfast_core.detectors.view import StepView, View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

NEWEST_STEPS, EARLIER_STEPS, LEAST_EARLIER_STEPS = 16, 128, 32
PERSISTENT_STEPS, PERSISTENT_S = 17, 60.0
"""The medians stay where they are for 16 more steps; another user may load a machine for a moment."""

_RATIO_LIMIT = 1.3
_MFU_LIMIT_RATIO = 0.5
_TOKENS_RATIO = 0.9
_CAUSE_RATIO = 0.5
"""Of the added seconds."""

BUSY_STEPS = 8
"""Per value of busy time."""
_BUSY_NEWEST, _BUSY_LEAST, _BUSY_KEPT = 2, 5, 16
"""Values after a drop, values that say what was before, values kept: a drop shows when it is two of them old."""


@dataclass(frozen=True)
class _Drop:
    """Since when the run has been slower, and how fast it was before."""

    since_step: int
    shown_unix_s: float
    """When it began to show."""
    before: StepPace
    busy_before_s: float | None
    """None if not known."""
    steps: int = 1
    """In a row."""
    reported: bool = False

    def is_due(self, now: float) -> bool:
        """Whether it has lasted long enough, and is not reported yet."""
        return not self.reported and self.steps >= PERSISTENT_STEPS and now - self.shown_unix_s >= PERSISTENT_S


@dataclass(frozen=True)
class ThroughputDrop(Detector):
    """Reports once in an episode."""

    name: ClassVar[str] = "throughput_drop"

    _paces: tuple[StepPace, ...] = ()
    """Of the newest steps."""
    _earlier_s: SortedWindow = field(default_factory=SortedWindow)
    """Seconds of the earlier steps: all of ``_paces`` but the newest 16."""
    _earlier_mfu: SortedWindow = field(default_factory=SortedWindow)
    """The same, of their MFU."""
    _drop: _Drop | None = None
    _steps: int = 0
    """Seen in this generation."""
    _marked_at: int = 0
    """``_steps`` when ``_marked`` was taken."""
    _marked: Mapping[int, store.RankState] = field(default_factory=dict)
    _busy_s: tuple[float, ...] = ()
    """Busy seconds per step of the busiest rank, over stretches of steps; the newest last."""

    def see_tick(self, view: View) -> DetectorResult:
        """Measure how busy ranks are, every few steps."""
        if self._marked and self._steps - self._marked_at < BUSY_STEPS:
            return DetectorResult(self)
        busy_s = (*self._busy_s, *_most_busy_s(self._marked, view.ranks))[-_BUSY_KEPT:]
        return DetectorResult(replace(self, _marked=view.ranks, _marked_at=self._steps, _busy_s=busy_s))

    def see_step(self, step: StepView) -> DetectorResult:
        """Compare the newest steps with those before."""
        watch = self._with_pace(pace_of(step.summary))
        paces = watch._paces
        if not watch._may_have_dropped:
            return DetectorResult(watch)
        before, newest = usual_pace(paces[:-NEWEST_STEPS]), usual_pace(paces[-NEWEST_STEPS:])
        drop = self._drop
        if drop is not None and not drop.reported:
            before = drop.before
        if not (_is_slower(before, newest) or _is_less_used(before, newest)):
            return DetectorResult(replace(watch, _drop=None))
        drop = self._begin(step, before, paces) if drop is None else replace(drop, steps=drop.steps + 1)
        if not drop.is_due(step.now):
            return DetectorResult(replace(watch, _drop=drop))
        return DetectorResult(
            replace(watch, _drop=replace(drop, reported=True)), findings_of(self._verdict(drop, newest))
        )

    def restarted(self, _after_step: int) -> Self:
        """Begin again."""
        return type(self)()

    def _with_pace(self, pace: StepPace) -> "ThroughputDrop":
        paces, earlier_s, earlier_mfu = (*self._paces, pace), self._earlier_s, self._earlier_mfu
        if len(paces) > NEWEST_STEPS:
            aged = paces[-NEWEST_STEPS - 1]
            earlier_s = earlier_s.with_value(aged.training_s, EARLIER_STEPS)
            earlier_mfu = earlier_mfu.with_value(aged.mfu, EARLIER_STEPS)
        return ThroughputDrop(
            _paces=paces[-(NEWEST_STEPS + EARLIER_STEPS) :],
            _earlier_s=earlier_s,
            _earlier_mfu=earlier_mfu,
            _drop=self._drop,
            _steps=self._steps + 1,
            _marked_at=self._marked_at,
            _marked=self._marked,
            _busy_s=self._busy_s,
        )

    @property
    def _may_have_dropped(self) -> bool:
        """Whether the medians of the seconds, or those of the MFU, allow a drop: most often neither does."""
        if len(self._earlier_s) < LEAST_EARLIER_STEPS:
            return False
        newest = self._paces[-NEWEST_STEPS:]
        is_longer = median([pace.training_s for pace in newest]) > _RATIO_LIMIT * self._earlier_s.median()
        is_less = median([pace.mfu for pace in newest]) < _MFU_LIMIT_RATIO * self._earlier_mfu.median()
        return self._drop is not None or is_longer or is_less

    def _begin(self, step: StepView, before: StepPace, paces: tuple[StepPace, ...]) -> _Drop:
        return _Drop(
            since_step=step.step - _slower_for(paces, before),
            shown_unix_s=step.now,
            before=before,
            busy_before_s=median(self._busy_s) if len(self._busy_s) >= _BUSY_LEAST else None,
        )

    def _verdict(self, drop: _Drop, newest: StepPace) -> store.Verdict:
        before = drop.before
        bottleneck, phase = self._bottleneck(drop, newest)
        detail = store.ThroughputDetail(since_step=drop.since_step, bottleneck=bottleneck)
        if _is_slower(before, newest):
            detail.step_s, detail.step_before_s = newest.training_s, before.training_s
        if _is_less_used(before, newest):
            detail.mfu_ratio, detail.mfu_before_ratio = newest.mfu, before.mfu
        return store.Verdict(
            kind=store.VERDICT_KIND_THROUGHPUT_DROP,
            step=drop.since_step,
            phase=phase,
            confidence_ratio=1.0,
            throughput=detail,
        )

    def _bottleneck(self, drop: _Drop, newest: StepPace) -> tuple["store.Bottleneck", "common.Phase"]:
        """Return what the added seconds are spent on, and the phase that says so."""
        before = drop.before
        added_s = newest.training_s - before.training_s
        if added_s <= 0.0:
            return store.BOTTLENECK_UNSPECIFIED, common.PHASE_UNSPECIFIED
        grown_s, cause, phase = max(
            (newest.data_s - before.data_s, store.BOTTLENECK_DATA, common.PHASE_DATA),
            (newest.checkpoint_s - before.checkpoint_s, store.BOTTLENECK_CHECKPOINTS, common.PHASE_CHECKPOINT),
            (newest.bubble_s - before.bubble_s, store.BOTTLENECK_BUBBLE, common.PHASE_FORWARD_BACKWARD),
        )
        if grown_s >= _CAUSE_RATIO * added_s:
            return cause, phase
        return self._compute_or_communication(drop, added_s), common.PHASE_FORWARD_BACKWARD

    def _compute_or_communication(self, drop: _Drop, added_s: float) -> "store.Bottleneck":
        if drop.busy_before_s is None:
            return store.BOTTLENECK_COMPUTATION_OR_COMMUNICATION
        grown_s = median(self._busy_s[-_BUSY_NEWEST:]) - drop.busy_before_s
        is_computation = grown_s >= _CAUSE_RATIO * added_s
        return store.BOTTLENECK_COMPUTATION if is_computation else store.BOTTLENECK_COMMUNICATION


def _is_slower(before: StepPace, newest: StepPace) -> bool:
    takes_longer = newest.training_s > _RATIO_LIMIT * before.training_s
    return takes_longer and (not before.tokens or newest.tokens_per_s < before.tokens_per_s / _RATIO_LIMIT)


def _is_less_used(before: StepPace, newest: StepPace) -> bool:
    return newest.mfu < _MFU_LIMIT_RATIO * before.mfu and newest.tokens >= _TOKENS_RATIO * before.tokens


def _slower_for(paces: tuple[StepPace, ...], before: StepPace) -> int:
    """Return how many steps before the newest one the drop began."""
    newest = paces[-NEWEST_STEPS:]
    began = (index for index, pace in enumerate(newest) if _is_slower(before, pace) or _is_less_used(before, pace))
    return len(newest) - 1 - next(began, 0)


def _most_busy_s(before: Mapping[int, store.RankState], after: Mapping[int, store.RankState]) -> list[float]:
    """Return the busy seconds per step of the busiest rank; nothing if none can be measured."""
    pairs = ((before[number], rank) for number, rank in after.items() if number in before and is_measured(rank))
    busy_s = [
        (now.busy_s - then.busy_s) / (now.steps_done - then.steps_done)
        for then, now in pairs
        if now.steps_done - then.steps_done >= BUSY_STEPS // 2
    ]
    return [max(busy_s)] if busy_s else []
