"""Three controls for each preset, with the deadlines that users have."""

from benchmarks.odd_runs.case import OddCase
from benchmarks.odd_runs.patience import Sign

_LASTS_S = {"fast": (6.0, 45.0, 100.0), "default": (40.0, 150.0, 240.0), "patient": (150.0, 200.0, 280.0)}
"""Preset -> seconds of a sleep, of an unmarked evaluation and of a marked one."""


def unscaled(preset: str) -> tuple[OddCase, ...]:
    """Return the controls of a preset."""
    sleep_s, computing_s, evaluation_s = _LASTS_S[preset]
    return (
        OddCase(
            name=f"{preset}: sleep in a callback",
            activity="sleep",
            by=(1,),
            sign=Sign.LIKELY,
            lasts_s=sleep_s,
            factor=1.0,
            preset=preset,
        ),
        OddCase(
            name=f"{preset}: evaluation unmarked, rank 0",
            activity="micro steps",
            by=(0,),
            waiters="barrier",
            sign=Sign.COMPUTING,
            lasts_s=computing_s,
            factor=1.0,
            preset=preset,
        ),
        OddCase(
            name=f"{preset}: evaluation marked by all",
            activity="sleep",
            phase="EVAL",
            sign=Sign.PHASE,
            lasts_s=evaluation_s,
            factor=1.0,
            preset=preset,
        ),
    )


UNSCALED = {preset: unscaled(preset) for preset in _LASTS_S}
