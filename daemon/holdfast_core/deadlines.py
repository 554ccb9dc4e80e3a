"""How long a rank may stall in each phase before it is judged: learned from the run's own timings.

    deadline = max(floor, 3 x p99 of the last 128 durations)

The floor is the user's preset. What happens rarely or once (start-up, first steps, checkpoint, eval, idling)
has a deadline of its own, because it takes long for good reasons. Judge the rank at the root of the wait
graph by its own phase: those that wait for it may be in another.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from holdfast_proto.v1 import common_pb2, store_pb2

_WINDOW = 128
_MARGIN = 3.0
_FLOOR_S = {store_pb2.PRESET_FAST: 1.0, store_pb2.PRESET_DEFAULT: 5.0, store_pb2.PRESET_PATIENT: 60.0}

_START_UP_S, _LATER_START_S, _START_UP_FLOORS = 60.0, 20.0, 10.0
_FIRST_STEPS_S, _FIRST_STEPS_FLOORS = 20.0, 5.0
_FIRST_STEPS = 2
"""Steps of a generation in which kernels compile and modules load."""

_OCCASIONAL_S, _OCCASIONAL_FLOORS = 20.0, 4.0
_OCCASIONAL = (common_pb2.PHASE_CHECKPOINT, common_pb2.PHASE_EVAL, common_pb2.PHASE_IDLE)
"""Phases that most steps do without: their time is no part of a step's."""


@dataclass(frozen=True)
class _Durations:
    """The newest durations of one kind, in seconds."""

    newest_s: tuple[float, ...] = ()
    p99_s: float = 0.0
    """The longest while there are fewer than a hundred; 0 without any."""

    def add(self, duration_s: float) -> "_Durations":
        newest_s = (*self.newest_s, duration_s)[-_WINDOW:]
        return _Durations(newest_s, sorted(newest_s)[math.ceil(0.99 * len(newest_s)) - 1])


@dataclass(frozen=True)
class Deadlines:
    """What a run's timings have taught so far. Outlives generations."""

    floor_s: float
    _steps: _Durations = _Durations()
    _occasional: Mapping[int, _Durations] = field(default_factory=dict)
    _longest_first_step_s: float = 0.0
    _longest_start_s: float = 0.0
    """The longest time for which a rank stood still before its first step, in starts that went well."""
    _present_start_s: float = 0.0
    """The same in the start of this generation."""
    _steps_seen: int = 0
    """In this generation."""
    _overran: bool = False
    """Whether the newest step took longer than its deadline."""
    _has_started_before: bool = False
    """Whether an earlier generation has shown how long its first steps take: no guess is needed then."""

    @classmethod
    def for_preset(cls, preset: "store_pb2.Preset") -> "Deadlines":
        """Return untaught deadlines; unspecified means default."""
        return cls(_FLOOR_S.get(preset, _FLOOR_S[store_pb2.PRESET_DEFAULT]))

    def new_generation(self) -> "Deadlines":
        """Return the same deadlines, about to see the first steps of a generation."""
        has_started = self._has_started_before or self._steps_seen >= _FIRST_STEPS
        return replace(self, _steps_seen=0, _present_start_s=0.0, _has_started_before=has_started)

    def observe(self, step_duration_s: float, phase_s: Mapping[int, float]) -> "Deadlines":
        """Learn from a finished step. ``phase_s``: Phase number -> seconds of it, for the phases that are known."""
        occasional_s = {phase: phase_s[phase] for phase in _OCCASIONAL if phase_s.get(phase, 0.0) > 0.0}
        training_s = max(0.0, step_duration_s - sum(occasional_s.values()))
        occasional = dict(self._occasional)
        for phase, duration_s in occasional_s.items():
            occasional[phase] = occasional.get(phase, _Durations()).add(duration_s)
        start_s = max(self._longest_start_s, self._present_start_s)
        learned = replace(
            self,
            _occasional=occasional,
            _longest_start_s=start_s,
            _present_start_s=0.0,
            _steps_seen=self._steps_seen + 1,
        )
        if self._steps_seen < _FIRST_STEPS:
            return replace(learned, _longest_first_step_s=max(self._longest_first_step_s, training_s))
        overran = bool(self._steps.newest_s) and training_s > self._steps_deadline_s
        learned = replace(learned, _overran=overran)
        # One step that overran its deadline was a stall and says nothing of the others; two in a row are a new pace.
        if overran and not self._overran:
            return learned
        return replace(learned, _steps=self._steps.add(training_s))

    def observe_start(self, stalled_s: float) -> "Deadlines":
        """Note for how long a rank has stood still before its first step: that counts if the start goes well."""
        return self if stalled_s <= self._present_start_s else replace(self, _present_start_s=stalled_s)

    @property
    def median_step_s(self) -> float | None:
        """How long a step usually takes without what is done at times; None: too few have been seen."""
        return statistics.median(self._steps.newest_s) if self._steps.newest_s else None

    def deadline_s(self, phase: int, steps_done: int) -> float:
        """Return how long a rank may stall in ``phase`` after ``steps_done`` steps of its generation."""
        if steps_done == 0 or phase == common_pb2.PHASE_INIT:
            # Nothing is known of the first start of a run. Later ones are judged by what it has taught; they also read
            # a checkpoint.
            least_s = _LATER_START_S if self._has_started_before else _START_UP_S
            return self._longest(least_s, _START_UP_FLOORS, max(self._longest_first_step_s, self._longest_start_s))
        if phase in _OCCASIONAL:
            return self._occasional_deadline_s(phase)
        if steps_done < _FIRST_STEPS or not self._steps.newest_s:
            least_s = 0.0 if self._has_started_before else _FIRST_STEPS_S
            return self._longest(least_s, _FIRST_STEPS_FLOORS, self._longest_first_step_s)
        return self._steps_deadline_s

    @cached_property
    def _steps_deadline_s(self) -> float:
        return self._longest(0.0, 1.0, self._steps.p99_s)

    def _occasional_deadline_s(self, phase: int) -> float:
        learned = self._occasional.get(phase)
        if learned is None:
            return self._longest(_OCCASIONAL_S, _OCCASIONAL_FLOORS, self._steps.p99_s)
        # What is done at times differs from one time to the next: a snapshot's copy says little of a full checkpoint.
        return self._longest(0.0, _OCCASIONAL_FLOORS, max(learned.p99_s, self._steps.p99_s))

    def _longest(self, least_s: float, floors: float, known_s: float) -> float:
        """max(least, floors x floor, 3 x the known duration)."""
        return max(least_s, floors * self.floor_s, _MARGIN * known_s)
