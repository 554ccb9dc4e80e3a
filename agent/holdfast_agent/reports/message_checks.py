"""Removes from a rank's message what makes no sense, before the agent uses any of it.

Losses and norms may be NaN or infinite: detectors look for that.
"""

from functools import lru_cache

from holdfast_proto.checks.message_checker import MessageChecker
from holdfast_proto.checks.message_cleaner import Refuse, clean
from holdfast_proto.checks.value_rules import LARGEST_PID, RefusedError
from holdfast_proto.checks.whole_rules import new_checker
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.v1 import session_pb2 as session

WORDS_CHARACTERS = 64 * 1024
"""Of a rank's last words, of which the end is kept."""


@lru_cache(maxsize=8)
def _checker_of(world_size: int) -> MessageChecker:
    return new_checker(world_size or MOST_RANKS)


def flaw_of_hello(hello: session.Hello) -> str:
    """Return why a rank that another launcher has started cannot belong to any world; "" if it can."""
    if hello.world_size > MOST_RANKS or hello.rank >= max(hello.world_size, 1):
        return f"rank {hello.rank} is not in a world of {hello.world_size}"
    if hello.local_rank > hello.rank:
        return f"local rank {hello.local_rank} is larger than rank {hello.rank}"
    if hello.local_world_size > hello.world_size:
        return f"{hello.local_world_size} local ranks are more than the world's {hello.world_size}"
    return "" if 0 < hello.pid <= LARGEST_PID else f"pid {hello.pid} is out of range"


def clean_hello(hello: session.Hello, refuse: Refuse) -> None:
    """Remove what makes no sense from a rank's first message."""
    axes = len(hello.coordinates)
    clean(hello, _checker_of(MOST_RANKS), refuse)
    if len(hello.coordinates) < axes:  # a place without one of its axes is the place of other ranks
        hello.ClearField("coordinates")


def flaw_of_slots(request: session.SlotRequest) -> str:
    """Return why a request for slots makes no sense; "" if it does."""
    try:
        _checker_of(MOST_RANKS).check(request)
    except RefusedError as error:
        return str(error)
    return ""


def clean_report(report: session.Report, world_size: int, refuse: Refuse, *, now_unix_s: float) -> None:
    """Remove what makes no sense from a report. ``world_size``: 0 if it is not known."""
    if len(report.last_words) > WORDS_CHARACTERS:
        refuse("last_words are too long: their end is kept")
        report.last_words = report.last_words[-WORDS_CHARACTERS:]
    clean(report, _checker_of(world_size), refuse)
    for step in report.steps:
        step.ended_unix_s = step.ended_unix_s or now_unix_s


def clean_witness_report(said: session.WitnessWords, refuse: Refuse) -> None:
    """Remove what makes no sense from what a witness says of ranks: it becomes a part of lines for people."""
    try:
        clean(said, _checker_of(MOST_RANKS), refuse)
    except RefusedError as error:
        refuse(str(error))
        said.ClearField("words")
