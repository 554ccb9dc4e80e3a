"""Cases that pause in a phase that the script marks."""

from benchmarks.odd_runs.case import OddCase, Twin
from benchmarks.odd_runs.patience import Sign

_MARKED_S = 6.0
"""Seconds of a pause: more than four floors of the preset fast, the report deadline of a phase that the run knows."""

PHASES = (
    OddCase(name="evaluation marked by all", phase="EVAL", activity="multiply", sign=Sign.PHASE, lasts_s=_MARKED_S),
    OddCase(name="long evaluation marked by all", phase="EVAL", activity="sleep", sign=Sign.PHASE, lasts_s=40.0),
    OddCase(
        name="evaluation marked by rank 0",
        phase="EVAL",
        activity="loop",
        by=(0,),
        waiters="barrier",
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
    ),
    OddCase(
        name="evaluation marked, rank 1 slower",
        phase="EVAL",
        activity="sleep",
        by=(1,),
        waiters="objects",
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
    ),
    OddCase(
        name="evaluations marked, three in a row",
        phase="EVAL",
        activity="loop",
        steps=(20, 24, 28),
        sign=Sign.PHASE,
        lasts_s=5.0,
    ),
    OddCase(
        name="evaluation marked, in a subprocess of rank 0",
        phase="EVAL",
        activity="compilers",
        by=(0,),
        waiters="broadcast",
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
        heavy=True,
    ),
    OddCase(
        name="checkpoint marked by all, nothing moves",
        phase="CHECKPOINT",
        activity="sleep",
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
    ),
    OddCase(
        name="checkpoint marked by rank 0, slow disk",
        phase="CHECKPOINT",
        activity="save",
        by=(0,),
        waiters="barrier",
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
    ),
    OddCase(
        name="checkpoint upload marked by rank 1",
        phase="CHECKPOINT",
        activity="upload",
        by=(1,),
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
    ),
    OddCase(
        name="curriculum pause marked idle by all", phase="IDLE", activity="sleep", sign=Sign.PHASE, lasts_s=_MARKED_S
    ),
    OddCase(
        name="pause marked idle by rank 1",
        phase="IDLE",
        activity="sleep",
        by=(1,),
        waiters="barrier",
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
    ),
    OddCase(
        name="four ranks, rank 2 evaluates marked",
        ranks=4,
        phase="EVAL",
        activity="sleep",
        by=(2,),
        waiters="gather",
        sign=Sign.PHASE,
        lasts_s=_MARKED_S,
    ),
    OddCase(
        name="data phase, all ranks read slowly",
        phase="DATA",
        activity="read",
        sign=Sign.PHASE,
        lasts_s=5.0,
        twin=Twin(activity="loader is stopped", by=(1,)),
    ),
    OddCase(
        name="data phase, rank 1 reads a slow file system",
        phase="DATA",
        activity="reread",
        by=(1,),
        sign=Sign.PHASE,
        lasts_s=5.0,
    ),
)
