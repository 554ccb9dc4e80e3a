"""The steps of a run wait for data: it continues, but slower than it could. For data that never comes: root_ranks.py.

    share = seconds in the data phase, of the rank that was in it longest / seconds of the step

Reported once the median share of the newest 32 steps has been over 30 %, and over twice the least such median of the
generation before that, for a minute. A generation's first 64 steps are compared with nothing: a run may
wait from its start. It ends when the median is back at 20 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.view import StepView, View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

WINDOW_STEPS = 32
PERSISTENT_S = 60.0
WARM_UP_STEPS = 2
"""Of a generation: data loaders start in them."""

SLOW_DATA = "slow_data"
"""Counter of reports. Incidents of this kind are counted together with those of data that never comes."""

_SHARE_LIMIT, _CALM_SHARE = 0.3, 0.2
_RISE_LIMIT_RATIO = 2.0
_MOST_WAIT_RATIO = 0.5
"""Least share of the longest wait that makes a rank one of those that wait most."""


@dataclass(frozen=True)
class DataShare(Detector):
    """Reports once in an episode, with the ranks that wait most where those are fewer than half."""

    name: ClassVar[str] = "data_share"

    _steps: int = 0
    """Seen in this generation."""
    _shares: tuple[float, ...] = ()
    """Of the newest 64 steps."""
    _least_share: float | None = None
    """The least median share of any 32 steps, but for the newest 32."""
    _over_since_unix_s: float | None = None
    """Since when the median has been over its limits; None: it is not."""
    _reported: bool = False
    _marked_at: int = 0
    """``_steps`` when ``_marked`` was taken."""
    _earlier: Mapping[int, store.RankState] = field(default_factory=dict)
    """All ranks as they were 32 to 64 steps ago."""
    _marked: Mapping[int, store.RankState] = field(default_factory=dict)
    """The same up to 32 steps ago."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Add a step's share."""
        steps = self._steps + 1
        if steps <= WARM_UP_STEPS or step.summary.duration_s <= 0.0:
            return DetectorResult(replace(self, _steps=steps))
        share = step.summary.phase_s.get(common.PHASE_DATA, 0.0) / step.summary.duration_s
        shares = (*self._shares, share)[-2 * WINDOW_STEPS :]
        least = self._least_share
        if len(shares) == 2 * WINDOW_STEPS and self._over_since_unix_s is None:
            earlier = median(shares[:WINDOW_STEPS])
            least = earlier if least is None else min(least, earlier)
        watch = replace(self, _steps=steps, _shares=shares, _least_share=least)
        over_since_unix_s = None
        if watch._is_over:
            over_since_unix_s = step.now if self._over_since_unix_s is None else self._over_since_unix_s
        reported = self._reported and watch._newest_share > _CALM_SHARE
        return DetectorResult(replace(watch, _over_since_unix_s=over_since_unix_s, _reported=reported))

    def see_tick(self, view: View) -> DetectorResult:
        """Judge the newest steps, and see which ranks have waited in them."""
        watch = self._mark(view)
        since_unix_s = self._over_since_unix_s
        if self._reported or since_unix_s is None or view.now - since_unix_s < PERSISTENT_S:
            return DetectorResult(watch)
        verdict = _verdict(view, self._newest_share, _waited_s(self._earlier or self._marked, view.ranks))
        return DetectorResult(replace(watch, _reported=True), findings_of(verdict), anomalies=(SLOW_DATA,))

    def restarted(self, _after_step: int) -> Self:
        """Begin again."""
        return type(self)()

    @property
    def _newest_share(self) -> float:
        return median(self._shares[-WINDOW_STEPS:])

    @property
    def _is_over(self) -> bool:
        if len(self._shares) < WINDOW_STEPS or self._newest_share <= _SHARE_LIMIT:
            return False
        return self._least_share is None or self._newest_share > _RISE_LIMIT_RATIO * self._least_share

    def _mark(self, view: View) -> "DataShare":
        if self._marked and self._steps - self._marked_at < WINDOW_STEPS:
            return self
        return replace(self, _marked_at=self._steps, _earlier=self._marked, _marked=view.ranks)


def _waited_s(since: Mapping[int, store.RankState], ranks: Mapping[int, store.RankState]) -> dict[int, float]:
    data = common.PHASE_DATA
    return {
        number: rank.phase_s.get(data, 0.0) - since[number].phase_s.get(data, 0.0)
        for number, rank in ranks.items()
        if number in since
    }


def _verdict(view: View, share: float, waited_s: Mapping[int, float]) -> store.Verdict:
    longest_s = max(waited_s.values(), default=0.0)
    most = sorted(
        (rank for rank, waited in waited_s.items() if waited >= _MOST_WAIT_RATIO * longest_s > 0.0),
        key=lambda rank: (-waited_s[rank], rank),
    )
    culprits = most if 2 * len(most) < len(view.ranks) else []
    return store.Verdict(
        kind=store.VERDICT_KIND_DATA_STALL,
        culprits=culprits,
        step=max((rank.progress.step for rank in view.ranks.values()), default=0),
        phase=common.PHASE_DATA,
        confidence_ratio=1.0,
        data_share=store.DataShareDetail(share_ratio=share, all_alike=bool(most) and not culprits),
    )
