"""A rank, or a node, that is slower than those that do the same work: all others wait for it in every step.

Over windows of at least 8 steps and 3 s, slow_ranks.py says which ranks were slow. One that was slow in three of the
last four windows, the newest among them, is a straggler; four windows in a row in which it was not end the episode.
What a rank usually needs is an average of its earlier windows, each newer one with a weight of a quarter, without
those in which it was slow. It is still known after a restart, as long as all ranks have the same places in the layout:
a rank may be slow because it was started on another machine.

Ranks on a GPU are compared by the time that was measured on it. Where work cannot be separated from waiting, they are
not compared: a training thread that waits for its GPU spins and looks busy. How much of the time a GPU runs kernels
accuses no rank either. It is added to the verdict where it shows why a rank is slow: see gpu_use.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.speed.gpu_use import GpuUse, add_witness, gpu_uses, utilizations
from holdfast_core.detectors.speed.own_time import OwnTime, own_times
from holdfast_core.detectors.speed.slow_ranks import Slow, slow_ranks
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

WINDOW_STEPS, WINDOW_S = 8, 3.0
"""Steps finished are counted a moment after the processor's time is read: one step in eight, or 0.2 s, is not much."""

WARM_UP_STEPS = 3
"""Of a generation: kernels compile and modules load, on some ranks for longer."""

SLOW_WINDOWS, OF_WINDOWS = 3, 4
_JOINING_WINDOWS = 2
"""A rank that was slow this often is reported with another straggler: the ranks of a slow node show one by one."""

_WEIGHT = 0.25
_HISTORY_WINDOWS = 3
"""Before what ranks usually need counts for something."""


@dataclass(frozen=True)
class Straggler(Detector):
    """Reports once in an episode. Between the ends of windows it looks at one rank only."""

    name: ClassVar[str] = "straggler"

    _since: Mapping[int, store.RankState] = field(default_factory=dict)
    """All ranks as the present window began."""
    _since_unix_s: float = 0.0
    _window_steps: tuple[int, ...] = ()
    """The step in which each of the last four windows began, the newest last."""
    _gpu_uses: tuple[Mapping[int, GpuUse], ...] = ()
    """Of ranks with a GPU of their own, as each of those windows began."""
    _slow: Mapping[int, tuple[bool, ...]] = field(default_factory=dict)
    """Of ranks that were slow in one of the last four windows: whether they were, in each."""
    _usual: Mapping[int, OwnTime] = field(default_factory=dict)
    _windows: int = 0
    """From which that was learned."""
    _places: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Of all ranks then: mesh axis -> index."""
    _reported: frozenset[int] = frozenset()

    def see_tick(self, view: View) -> DetectorResult:
        """Judge a window once it is over."""
        first = next(iter(view.ranks.values()), None)
        if first is None or first.steps_done < WARM_UP_STEPS:
            return DetectorResult(self)
        began = self._since.get(first.rank)
        if began is None:
            return DetectorResult(self._first_window(view))
        if first.steps_done - began.steps_done < WINDOW_STEPS or view.now - self._since_unix_s < WINDOW_S:
            return DetectorResult(self)
        return self._end_window(view, began.progress.step, first.steps_done - began.steps_done)

    def restarted(self, _after_step: int) -> Self:
        """Begin again, with what ranks usually need."""
        return type(self)(_usual=self._usual, _windows=self._windows, _places=self._places)

    def _first_window(self, view: View) -> "Straggler":
        places = {number: dict(rank.coordinates) for number, rank in view.ranks.items()}
        known = self if places == self._places else type(self)(_places=places)
        return known._begin(view)

    def _begin(self, view: View) -> "Straggler":
        return replace(self, _since=view.ranks, _since_unix_s=view.now)

    def _end_window(self, view: View, began_in_step: int, steps: int) -> DetectorResult:
        times = own_times(self._since, view.ranks, least_steps=steps // 2)
        slow = slow_ranks(
            times,
            {number: view.ranks[number].coordinates.get("pp", 0) for number in times},
            self._usual if self._windows >= _HISTORY_WINDOWS else {},
            step_s=(view.now - self._since_unix_s) / steps,
            steps=steps,
        )
        judged = replace(
            self._begin(view),
            _window_steps=(*self._window_steps, began_in_step)[-OF_WINDOWS:],
            _gpu_uses=(*self._gpu_uses, gpu_uses(self._since))[-OF_WINDOWS:],
            _slow=self._remember(slow),
            _usual=self._learn({number: own for number, own in times.items() if number not in slow}),
            _windows=self._windows + bool(times),
        )
        judged = replace(judged, _reported=self._reported.intersection(judged._slow))
        stragglers = judged._new_stragglers(slow)
        verdict = judged._verdict(view, {rank: slow[rank] for rank in stragglers}) if stragglers else None
        return DetectorResult(replace(judged, _reported=judged._reported.union(stragglers)), findings_of(verdict))

    def _remember(self, slow: Mapping[int, Slow]) -> dict[int, tuple[bool, ...]]:
        windows = {rank: (*self._slow.get(rank, ()), rank in slow)[-OF_WINDOWS:] for rank in {*self._slow, *slow}}
        return {rank: of_rank for rank, of_rank in windows.items() if any(of_rank)}

    def _learn(self, times: Mapping[int, OwnTime]) -> dict[int, OwnTime]:
        known = self._usual
        newest = {rank: _averaged(known[rank], own) if rank in known else own for rank, own in times.items()}
        return {**known, **newest}

    def _new_stragglers(self, slow: Mapping[int, Slow]) -> list[int]:
        windows = {rank: sum(self._slow[rank]) for rank in slow if rank not in self._reported}
        if max(windows.values(), default=0) < SLOW_WINDOWS:
            return []
        joining = [rank for rank, count in windows.items() if count >= _JOINING_WINDOWS]
        return sorted(joining, key=lambda rank: (-slow[rank].excess_s, rank))

    def _verdict(self, view: View, slow: Mapping[int, Slow]) -> store.Verdict:
        culprits = list(slow)
        first = slow[culprits[0]]
        of_first = self._slow[culprits[0]]
        slow_since = of_first.index(True) - len(of_first)
        phase: common.Phase = first.phase  # type: ignore[assignment]
        return store.Verdict(
            kind=store.VERDICT_KIND_STRAGGLER,
            culprits=culprits,
            confidence_ratio=1.0 if first.by_peers else 0.8,
            step=self._window_steps[slow_since],
            phase=phase,
            node=_slow_node(view, culprits),
            straggler=self._detail(view, culprits[0], first, self._gpu_uses[slow_since]),
        )

    def _detail(self, view: View, rank: int, slow: Slow, uses_before: Mapping[int, GpuUse]) -> store.StragglerDetail:
        gpu = view.ranks[rank].gpu
        detail = store.StragglerDetail(
            kind=slow.kind,
            own_s=slow.own_s,
            usual_s=slow.usual_s,
            by_peers=slow.by_peers,
            throttles=gpu.throttles,
            gpu=gpu.gpu,
        )
        stages = {number: state.coordinates.get("pp", 0) for number, state in view.ranks.items()}
        peers = [number for number, stage in stages.items() if stage == stages[rank] and number not in self._slow]
        add_witness(detail, rank, utilizations(uses_before, gpu_uses(view.ranks)), peers)
        return detail


def _averaged(before: OwnTime, newest: OwnTime) -> OwnTime:
    return OwnTime(
        busy_s=before.busy_s + _WEIGHT * (newest.busy_s - before.busy_s),
        data_s=before.data_s + _WEIGHT * (newest.data_s - before.data_s),
        optimizer_s=before.optimizer_s + _WEIGHT * (newest.optimizer_s - before.optimizer_s),
        occasional_s=before.occasional_s + _WEIGHT * (newest.occasional_s - before.occasional_s),
        asleep_s=before.asleep_s + _WEIGHT * (newest.asleep_s - before.asleep_s),
        device_s=before.device_s + _WEIGHT * (newest.device_s - before.device_s),
    )


def _slow_node(view: View, culprits: Sequence[int]) -> str:
    """Return the node that most ranks of are slow, and none of the others; empty if it is not a node that is slow."""
    slow_on = {view.node_of.get(rank, "") for rank in culprits}
    if len(slow_on) != 1 or len(culprits) < 2:
        return ""
    node = slow_on.pop()
    sizes = Counter(view.node_of.values())
    return node if len(sizes) > 1 and 2 * len(culprits) > sizes[node] else ""
