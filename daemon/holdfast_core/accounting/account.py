"""The account of a run's wall time: a message of the record, and what time outside of finished steps was used for.

The account is settled up to a moment: its start plus the sum of all uses. So the uses always sum to the time that has
passed until then. All times here are seconds since the start of the account.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from holdfast_core.accounting.phase_watch import SeenStretch, filled, seen_between, stalled_s
from holdfast_core.deadlines import Deadlines
from holdfast_proto import vocabulary
from holdfast_proto.v1 import store_pb2 as store


def settled_until_s(book: store.TimeUse) -> float:
    """Return the time up to which an account is settled."""
    return math.fsum(book.settled_s.values())


def settle(book: store.TimeUse, spent_s: Mapping[str, float]) -> None:
    """Add the uses of the time that follows on the settled one."""
    for use, seconds in spent_s.items():
        book.settled_s[use] += seconds


def outside_of_steps(
    book: store.TimeUse, watched: Sequence[SeenStretch], until_s: float, deadlines: Deadlines, *, is_open: bool = False
) -> dict[str, float]:
    """Return the uses of the time from the settled one to ``until_s``, in a run that no verdict has stopped.

    Before the first step it is start-up. Later it is what the ranks were seen to do. A training phase that lasted
    beyond the deadline was a standstill. Time in which nothing was seen is idle. While the time ``is_open``, its steps
    may still be on their way: then it is what the run did last.
    """
    since_s = settled_until_s(book)
    if book.reached_step < 0:
        return {vocabulary.START_UP: until_s - since_s}
    seen, unseen_s = _seen(book, watched, since_s, until_s)
    unseen = _undecided(book, watched, seen, since_s, until_s) if is_open else {vocabulary.IDLE: unseen_s}
    stalled = stalled_s(seen.get(vocabulary.PRODUCTIVE, 0.0), deadlines)
    if stalled:
        seen[vocabulary.PRODUCTIVE] -= stalled
        seen[vocabulary.DETECTION] = stalled
    for use, seconds in unseen.items():
        seen[use] = seen.get(use, 0.0) + seconds
    return seen


def _undecided(
    book: store.TimeUse, watched: Sequence[SeenStretch], seen: Mapping[str, float], since_s: float, until_s: float
) -> dict[str, float]:
    """Return the uses of the time in which nothing was seen, each as what was seen before it.

    Before the first look the run trained: the account is settled up to the end of a step.
    """
    whole, before_s = _seen(book, filled(watched, book.since_unix_s + until_s), since_s, until_s)
    whole[vocabulary.PRODUCTIVE] = whole.get(vocabulary.PRODUCTIVE, 0.0) + before_s
    return {use: max(0.0, seconds - seen.get(use, 0.0)) for use, seconds in whole.items()}


def around_verdict(book: store.TimeUse, watched: Iterable[SeenStretch], until_s: float) -> dict[str, float]:
    """Return the uses of the time from the settled one to ``until_s``, if a verdict has stopped the run in it.

    Up to the last progress a step was under way, which is lost. Detection lasts from there to the verdict, and restart
    from the verdict on.
    """
    since_s = settled_until_s(book)
    progress_s = _within(book.progress_unix_s - book.since_unix_s, since_s, until_s)
    judged_s = _within(book.judged_unix_s - book.since_unix_s, progress_s, until_s)
    if book.reached_step < 0:
        spent = {vocabulary.START_UP: progress_s - since_s}
    else:
        spent, unseen_s = _seen(book, watched, since_s, progress_s)
        cut_short_s = spent.pop(vocabulary.PRODUCTIVE, 0.0) + unseen_s
        spent[vocabulary.REPEATED_STEPS] = cut_short_s
    return {**spent, vocabulary.DETECTION: judged_s - progress_s, vocabulary.RESTART: until_s - judged_s}


def _seen(
    book: store.TimeUse, watched: Iterable[SeenStretch], since_s: float, until_s: float
) -> tuple[dict[str, float], float]:
    """Return what was seen between two times, and the seconds in which nothing was."""
    seen = seen_between(watched, book.since_unix_s + since_s, book.since_unix_s + until_s)
    total_s, lasted_s = math.fsum(seen.values()), until_s - since_s
    if total_s > lasted_s:  # by the rounding of Unix times
        seen = {use: seconds * lasted_s / total_s for use, seconds in seen.items()}
        return seen, 0.0
    return seen, lasted_s - total_s


def _within(value_s: float, least_s: float, most_s: float) -> float:
    return min(max(value_s, least_s), most_s)
