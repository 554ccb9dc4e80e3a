"""Cases that pause in a real data loader."""

from benchmarks.odd_runs.case import OddCase, Twin
from benchmarks.odd_runs.patience import Sign

_STUCK = Twin(activity="loader is stopped", by=(1,))
"""Ranks that are all in DATA with live workers are never restarted. So in the twin one rank's worker is stopped."""

DATA = (
    OddCase(
        name="loader workers start anew, all",
        phase="DATA",
        activity="loader starts",
        sign=Sign.PHASE,
        lasts_s=5.0,
        heavy=True,
        twin=_STUCK,
    ),
    OddCase(
        name="first batch of an epoch is slow, all",
        phase="DATA",
        activity="loader computes",
        sign=Sign.PHASE,
        lasts_s=6.0,
        heavy=True,
        twin=_STUCK,
    ),
    OddCase(
        name="first batch of an epoch is slow, rank 1",
        phase="DATA",
        activity="loader computes",
        by=(1,),
        sign=Sign.PHASE,
        lasts_s=6.0,
    ),
    OddCase(
        name="storage does not answer the workers, all",
        phase="DATA",
        activity="loader sleeps",
        sign=Sign.PHASE,
        lasts_s=6.0,
        twin=_STUCK,
    ),
    OddCase(
        name="storage does not answer the workers of rank 1",
        phase="DATA",
        activity="loader sleeps",
        by=(1,),
        sign=Sign.PHASE,
        lasts_s=6.0,
    ),
    OddCase(
        name="workers of rank 1 read slowly",
        phase="DATA",
        activity="loader reads",
        by=(1,),
        sign=Sign.PHASE,
        lasts_s=6.0,
    ),
    OddCase(
        name="loader of rank 0 computes, phase not marked",
        activity="loader computes",
        by=(0,),
        sign=Sign.COMPUTING,
        lasts_s=6.0,
    ),
    OddCase(
        name="loader workers of all start anew, phase not marked",
        activity="loader starts",
        sign=Sign.COMPUTING,
        lasts_s=5.0,
        heavy=True,
    ),
)
