"""Cases in which another process causes the pause."""

from benchmarks.odd_runs.case import OddCase, Place, Twin
from benchmarks.odd_runs.patience import Sign

_THEN_STOP_ONE = Twin(activity="then stop rank 1", sign=Sign.CERTAIN)
"""A twin for controls whose pause never stops training. Rank 1 is stopped afterwards and stays stopped."""
_THEN_RESUME_ALL_BUT_ONE = Twin(activity="resume all but rank 1", sign=Sign.CERTAIN)


def _outside(
    name: str, activity: str, lasts_s: float, twin: Twin, *, sign: Sign = Sign.COMPUTING, **changes: object
) -> OddCase:
    return OddCase(
        name=name,
        activity=activity,
        place=Place.OUTSIDE,
        lasts_s=lasts_s,
        sign=sign,
        twin=twin,
        trains_throughout=twin is _THEN_STOP_ONE,
        **changes,  # type: ignore[arg-type]
    )


OUTSIDE = (
    _outside("all ranks stopped", "stop ranks", 6.0, Twin(), notes=0),
    _outside("all ranks stopped and resumed in another order", "stop ranks shuffled", 6.0, Twin(), notes=0, ranks=4),
    _outside("whole tree stopped", "stop tree", 5.0, _THEN_RESUME_ALL_BUT_ONE, notes=0),
    _outside("agent, daemon and ranks stopped", "stop sidecar and ranks", 5.0, _THEN_RESUME_ALL_BUT_ONE, notes=0),
    _outside("suspended three times", "suspend thrice", 2.5, _THEN_RESUME_ALL_BUT_ONE, notes=0),
    _outside(
        "one of two ranks stopped for a moment",
        "stop rank 1",
        0.5,
        Twin(),
        sign=Sign.CERTAIN,
        outlasts_report=False,
    ),
    _outside("two of four ranks stopped", "stop two ranks", 1.9, Twin(), sign=Sign.LIKELY, ranks=4),
    _outside("agent stopped", "stop agent", 4.0, _THEN_STOP_ONE),
    _outside("daemon stopped", "stop daemon", 4.0, _THEN_STOP_ONE),
    _outside("Redis stopped", "stop redis", 5.0, _THEN_STOP_ONE),
    _outside("loaded machine", "load", 6.0, _THEN_STOP_ONE, heavy=True),
    _outside("loaded machine, rank 1 with low priority", "load and renice", 6.0, _THEN_STOP_ONE, heavy=True),
    _outside("debugger holds rank 1", "trace rank 1", 6.0, Twin()),
    _outside("debugger holds all ranks", "trace ranks", 5.0, Twin()),
    _outside("stacks are dumped again and again", "dump stacks", 4.0, _THEN_STOP_ONE),
)
