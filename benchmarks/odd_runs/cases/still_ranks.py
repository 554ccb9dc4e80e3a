"""Cases in which nothing moves."""

from benchmarks.odd_runs.case import OddCase
from benchmarks.odd_runs.patience import Sign

_STILL_S = 2.0
"""Seconds of a pause: between the floor of the preset fast and the scaled patience for a likely sign."""

STILL = (
    OddCase(name="sleep in a callback", activity="sleep", by=(1,), sign=Sign.LIKELY, lasts_s=_STILL_S),
    OddCase(
        name="sleep of rank 0, others in a barrier",
        activity="sleep",
        by=(0,),
        waiters="barrier",
        sign=Sign.LIKELY,
        lasts_s=_STILL_S,
    ),
    OddCase(
        name="sleep with the interpreter lock",
        activity="sleep with the interpreter lock",
        by=(1,),
        sign=Sign.LIKELY,
        lasts_s=_STILL_S,
    ),
    OddCase(name="breakpoint of rank 0", activity="wait for a person", by=(0,), sign=Sign.LIKELY, lasts_s=_STILL_S),
    OddCase(name="a child that sleeps", activity="sleep in a child", by=(1,), sign=Sign.LIKELY, lasts_s=_STILL_S),
    OddCase(name="four ranks, rank 3 sleeps", ranks=4, activity="sleep", by=(3,), sign=Sign.LIKELY, lasts_s=_STILL_S),
    OddCase(name="all sleep, nobody waits", activity="sleep", sign=Sign.COMPUTING, lasts_s=6.0),
    OddCase(name="a single rank sleeps", ranks=1, activity="sleep", sign=Sign.COMPUTING, lasts_s=6.0),
    OddCase(
        name="rank 1 waits for a key of the store",
        activity="multiply",
        by=(0,),
        waiters="store",
        sign=Sign.COMPUTING,
        lasts_s=6.0,
    ),
)
