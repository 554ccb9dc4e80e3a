"""Cases that pause before the first step or after the last one."""

from benchmarks.odd_runs.case import OddCase, Place, Twin
from benchmarks.odd_runs.patience import Sign

_START_S = 65.0
"""Seconds of a pause in a start: more than its report deadline of one minute."""
_START_FACTOR = 0.5
"""Factor that sets the restart deadline of a phase, such as INIT, to 90 s."""
_END_S = 63.0
"""Seconds of a pause at the end: more than the minute after which a rank that does not end is reported."""
_END_FACTOR = 0.5
_STILL = Twin(activity="sleep")
"""A rank that moves is not ended, so nothing moves in the twin."""

STARTS = (
    OddCase(
        name="rank 0 reads weights at the start",
        place=Place.BEFORE_STEPS,
        activity="read",
        by=(0,),
        waiters="broadcast",
        sign=Sign.PHASE,
        factor=_START_FACTOR,
        lasts_s=_START_S,
    ),
    OddCase(
        name="all ranks build an index before attach",
        place=Place.BEFORE_ATTACH,
        activity="reread",
        sign=Sign.PHASE,
        factor=_START_FACTOR,
        lasts_s=_START_S,
    ),
    OddCase(
        name="a long first step",
        activity="micro steps",
        steps=(0,),
        sign=Sign.COMPUTING,
        factor=1.5,
        lasts_s=_START_S,
    ),
    OddCase(
        name="a long second step",
        activity="loop",
        by=(0,),
        steps=(1,),
        sign=Sign.COMPUTING,
        factor=0.5,
        lasts_s=23.0,
    ),
)

ENDINGS = (
    OddCase(
        name="upload after the loop",
        place=Place.AFTER_LOOP,
        activity="upload",
        by=(0,),
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
        twin=_STILL,
    ),
    OddCase(
        name="rank 1 leaves the loop later",
        place=Place.AFTER_LOOP,
        activity="sleep",
        by=(1,),
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
    ),
    OddCase(
        name="final evaluation of rank 0",
        place=Place.AFTER_LOOP,
        phase="EVAL",
        activity="multiply",
        by=(0,),
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
        twin=_STILL,
    ),
    OddCase(
        name="upload after close",
        place=Place.AFTER_CLOSE,
        activity="upload",
        by=(0,),
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
        twin=Twin(activity="upload until it stops", from_last_move=True),
    ),
    OddCase(
        name="upload in an exit handler",
        place=Place.AT_EXIT,
        activity="upload",
        by=(0,),
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
        twin=_STILL,
    ),
    OddCase(
        name="upload in a thread that outlives the main thread",
        place=Place.IN_THREAD,
        activity="upload",
        by=(1,),
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
        twin=_STILL,
    ),
    OddCase(
        name="destroy_process_group is slow",
        place=Place.AFTER_CLOSE,
        activity="sleep",
        by=(1,),
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
    ),
    OddCase(
        name="exit handler computes, all",
        place=Place.AT_EXIT,
        activity="micro steps",
        sign=Sign.PHASE,
        factor=_END_FACTOR,
        lasts_s=_END_S,
        twin=_STILL,
    ),
)
