"""Cases in which nothing moves."""

from benchmarks.odd_runs.case import OddCase, Twin
from benchmarks.odd_runs.patience import Sign

_STILL_S = 2.0
"""Seconds of a pause: between the floor of the preset fast and the scaled patience for a likely sign."""

_SIGNED_S = 25.0
"""Seconds of a pause with signs of life, twice as long as the patience for a likely sign. That one is not scaled here:
the agent looks once a second, and sees nothing of what happens while it takes a stack."""

_SLEEPS = Twin(activity="sleep", sign=Sign.LIKELY)
"""Without a sign of life, the same pause is a fault."""

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
    OddCase(
        name="tries again with growing pauses, and prints",
        activity="growing pauses",
        by=(1,),
        sign=Sign.COMPUTING,
        lasts_s=_SIGNED_S,
        factor=1.0,
        twin=_SLEEPS,
    ),
    OddCase(
        name="looks for a file once a second",
        activity="look for a file",
        by=(1,),
        sign=Sign.COMPUTING,
        lasts_s=_SIGNED_S,
        factor=1.0,
        twin=_SLEEPS,
    ),
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
