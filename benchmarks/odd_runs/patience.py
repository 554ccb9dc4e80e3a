"""The deadlines that docs/detectors.md promises, written a second time so that controls test the code against them."""

from enum import StrEnum


class Sign(StrEnum):
    """The certainty of the sign at the root of the waits."""

    CERTAIN = "certain"
    """One rank is stopped and no other rank is."""
    LIKELY = "likely"
    """Nothing moves in the rank's process tree while others wait for it."""
    COMPUTING = "computing"
    """Something computes, does I/O or is traced, or no rank waits for another."""
    PHASE = "phase"
    """The rank is in DATA, EVAL, CHECKPOINT, INIT or IDLE."""


class Where(StrEnum):
    """The moment of a run that decides when a pause is reported."""

    STEP = "step"
    OCCASIONAL = "occasional"
    """A marked EVAL, CHECKPOINT or IDLE, after the run has finished short ones."""
    SECOND_STEP = "second step"
    START = "start"
    """Start-up and the first step."""
    END = "end"
    """After the last step, when the other ranks have left training."""


_RESTART_S = {
    "fast": {Sign.CERTAIN: 1.0, Sign.LIKELY: 10.0, Sign.COMPUTING: 60.0, Sign.PHASE: 180.0},
    "default": {Sign.CERTAIN: 5.0, Sign.LIKELY: 60.0, Sign.COMPUTING: 600.0, Sign.PHASE: 1800.0},
    "patient": {Sign.CERTAIN: 60.0, Sign.LIKELY: 300.0, Sign.COMPUTING: 1800.0, Sign.PHASE: 3600.0},
}
_FLOOR_S = {"fast": 1.0, "default": 5.0, "patient": 60.0}
_LEAST_S = {Where.STEP: 0.0, Where.OCCASIONAL: 0.0, Where.SECOND_STEP: 20.0, Where.START: 60.0, Where.END: 60.0}
_FLOORS = {Where.STEP: 1.0, Where.OCCASIONAL: 4.0, Where.SECOND_STEP: 5.0, Where.START: 10.0, Where.END: 0.0}

FACTOR = 0.3
"""Factor of --restart-patience for the controls. With it every deadline of an uncertain sign is at least 3 s."""


def restart_s(sign: Sign, preset: str = "fast", factor: float = FACTOR) -> float:
    """Return the seconds until a restart. The factor does not apply to a certain sign."""
    return _RESTART_S[preset][sign] * (1.0 if sign is Sign.CERTAIN else factor)


def report_s(where: Where, preset: str = "fast") -> float:
    """Return the seconds until a pause is reported. Steps are short, so the learned deadlines are at their floors."""
    return max(_LEAST_S[where], _FLOORS[where] * _FLOOR_S[preset])
