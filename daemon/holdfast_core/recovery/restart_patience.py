"""How long a standstill lasts before the ranks are restarted: the less certain the sign of a fault, the longer.

    patience = max(table[sign, preset] x factor, 3 x the longest healthy stay in the phase) x 2^repeats

An exit and a certain sign need no patience of their own: they count as soon as the verdict is reached. The factor is
the run's ``--restart-patience``. ``repeats`` counts the restarts for uncertain signs at one step: if a restart did not
help, the next one probably will not help either, and the run may only be slow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


class Sign(IntEnum):
    """What speaks for a fault, the most certain first."""

    EXIT = 0
    """A rank has ended, and others need it."""
    CERTAIN = 1
    """A rank is stopped while no other is, or ranks are in different calls."""
    LIKELY = 2
    """Nothing moves in the process tree of a rank that others wait for, or in a call that all have entered."""
    NONE = 3
    """Time alone."""


LEAST_FACTOR, MOST_FACTOR = 0.01, 1000.0
"""Of ``--restart-patience``."""

UNCERTAIN_RESTARTS = 3
"""At one step. After these the run is left as it is, and an alert says so."""

PAUSES = (
    common.PHASE_INIT,
    common.PHASE_DATA,
    common.PHASE_EVAL,
    common.PHASE_CHECKPOINT,
    common.PHASE_IDLE,
)
"""Phases that may take long for good reasons, whatever the process does in them."""

MARKED = (common.PHASE_EVAL, common.PHASE_CHECKPOINT)
"""Phases that scripts enter to say that they do something long other than training."""

_PRESETS = (store.PRESET_FAST, store.PRESET_DEFAULT, store.PRESET_PATIENT)
_LIKELY_S = dict(zip(_PRESETS, (10.0, 60.0, 300.0), strict=True))
_COMPUTING_S = dict(zip(_PRESETS, (60.0, 600.0, 1800.0), strict=True))
_PAUSES_S = dict(zip(_PRESETS, (180.0, 1800.0, 3600.0), strict=True))

_MARGIN = 3.0
"""Over the longest time that a phase is known to have taken."""


@dataclass(frozen=True)
class RestartPatience:
    """The patience of one run at one moment, in seconds since the last progress."""

    table_likely_s: float
    table_computing_s: float
    table_pauses_s: float
    longest_s: Mapping[int, float]
    """Phase number -> the longest that a finished step was in it."""
    repeats: int = 0

    @classmethod
    def of(cls, spec: store.RunSpec, record: store.CoordinatorState) -> "RestartPatience":
        """Return the patience for a run's next standstill."""
        preset = spec.preset if spec.preset in _LIKELY_S else store.PRESET_DEFAULT
        factor = min(max(spec.restart_patience or 1.0, LEAST_FACTOR), MOST_FACTOR)
        return cls(
            factor * _LIKELY_S[preset],
            factor * _COMPUTING_S[preset],
            factor * _PAUSES_S[preset],
            dict(record.longest_phase_s),
            uncertain_restarts(record),
        )

    def likely_s(self, phase: int) -> float:
        """Return how long a rank must have been still that others wait for."""
        return self._of(self.table_likely_s, phase)

    def time_alone_s(self, phase: int) -> float:
        """Return how long a rank may take in a phase, whatever it does there."""
        return self._of(self.table_pauses_s if phase in PAUSES else self.table_computing_s, phase)

    def at_work_s(self, phase: int) -> float:
        """Return how long ranks may work in a marked phase before that is reported: well before the restart."""
        return self.time_alone_s(phase) / 2

    @property
    def suspended_s(self) -> float:
        """Seconds that all ranks may be stopped together: the run has been suspended on purpose."""
        return self.table_computing_s * 2.0**self.repeats

    @property
    def leaving_s(self) -> float:
        """How long nothing may move in the processes of ranks that have left training."""
        return self.table_pauses_s

    def _of(self, table_s: float, phase: int) -> float:
        return max(table_s, _MARGIN * self.longest_s.get(phase, 0.0)) * 2.0**self.repeats


def uncertain_restarts(record: store.CoordinatorState) -> int:
    """Return how many restarts for uncertain signs the present step has already had."""
    return 0 if has_progressed(record) else record.uncertain_restarts


def has_progressed(record: store.CoordinatorState) -> bool:
    """Return whether the newest generation has completed a step that the run did not have before.

    Numbers that begin at 0 in each generation do not show that. But a fault that comes back at one place of the program
    comes after as many steps as before, give or take the one step whose report a killed rank takes with it.
    """
    newest, before = record.newest_step, record.step_at_restart
    if record.counts_anew:
        return newest >= 0 and abs(newest - before) > 1
    return newest > before
