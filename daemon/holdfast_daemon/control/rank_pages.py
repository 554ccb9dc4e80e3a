"""Which ranks of a run a person sees: how odd each is, which match a search, in which order, and on which page.

All views ask here: the control API, the console, and the command for a run that has ended. A view of ten thousand ranks
gets one page of them and the number of all by oddity.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from holdfast_core.reading.rank_health import EXITED, LEFT, OK, STALLED, STARTING, WAITING
from holdfast_core.texts.incident_lines import enum_phrase
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1.common_pb2 import Phase

MOST_LISTED = 4096
"""Most ranks on a page."""
SEARCH_CHARACTERS = 100
"""Longest text of a search."""


class Oddity(IntEnum):
    """How a rank differs from the others, the oddest first. The numbers are those of RankOddity."""

    EXITED = 1
    CULPRIT = 2
    STOPPED = 3
    STALLED = 4
    BEHIND = 5
    SLOW = 6
    STARTING = 7
    WAITING = 8
    RUNNING = 9
    ENDED = 10

    @property
    def word(self) -> str:
        """The name that people read and search for."""
        return self.name.lower()


_OTHER_WORDS = {
    Oddity.EXITED: "dead",
    Oddity.STALLED: "no progress",
    Oddity.WAITING: "waits",
    Oddity.ENDED: "finished",
}
"""How some views put an oddity in other words."""


class RankFacts(NamedTuple):
    """What search and order need to know of a rank."""

    oddity: Oddity
    number: int
    node: str
    step: int
    stalled_s: float
    memory_bytes: int
    phase: int
    coordinates: Mapping[str, int]
    is_culprit: bool


_OF_HEALTH = {
    LEFT: Oddity.ENDED,
    STALLED: Oddity.STALLED,
    STARTING: Oddity.STARTING,
    WAITING: Oddity.WAITING,
}


def oddity_of(
    health: int, *, shows_exit: bool, is_halted: bool, is_culprit: bool, is_behind: bool, is_slow: bool
) -> Oddity:
    """Return how odd a rank is. ``shows_exit``: it has ended, and not only because Holdfast ended it."""
    if health == EXITED:
        return Oddity.EXITED if shows_exit else Oddity.ENDED
    if is_culprit and health != LEFT:
        return Oddity.CULPRIT
    if is_halted and health != LEFT:
        return Oddity.STOPPED
    if health == OK:
        return Oddity.BEHIND if is_behind else Oddity.SLOW if is_slow else Oddity.RUNNING
    return _OF_HEALTH[health]


def oddity_counts(facts: Collection[RankFacts]) -> dict[Oddity, int]:
    """Return the number of ranks of each oddity that ranks have, the oddest first."""
    return dict(sorted(Counter([one.oddity for one in facts]).items()))


def odd_kinds(counts: Mapping[Oddity, int], *, is_explained: bool) -> frozenset[Oddity]:
    """Return the oddities that a person should look at.

    Ranks that start or wait are odd while they are fewer than half. Those that wait are not odd if it is known why:
    ``is_explained`` says that a culprit is named, or that a rank is in a marked pause.
    """
    always = {kind for kind in Oddity if kind < Oddity.STARTING}
    total = sum(counts.values())
    for kind in (Oddity.STARTING, Oddity.WAITING):
        if 2 * counts.get(kind, 0) < total and not (kind is Oddity.WAITING and is_explained):
            always.add(kind)
    return frozenset(always)


class RankSearch:
    """A text that ranks are searched for: a number, a range, or a part of node, oddity, phase or place."""

    def __init__(self, text: str) -> None:
        """Raise ValueError if the text is too long, or a range ends before it begins."""
        if len(text) > SEARCH_CHARACTERS:
            raise ValueError(f"the search has {len(text)} characters: use at most {SEARCH_CHARACTERS}")
        self._text = text.strip().lower()
        first, dash, last = self._text.partition("-")
        is_number = first.isdecimal() and (last.isdecimal() or not dash)
        self._numbers = range(int(first), int(last or first) + 1) if is_number else None
        if self._numbers is not None and not self._numbers:
            raise ValueError(f"the search {self._text!r} ends before it begins: use {last}-{first}")
        words = {kind: f"{kind.word} {_OTHER_WORDS.get(kind, '')}" for kind in Oddity}
        self._oddities = {kind for kind in Oddity if self._text in words[kind]}
        self._phases = {phase for phase in Phase.values() if phase and self._text in enum_phrase(Phase, phase)}
        self._nodes: dict[str, bool] = {}

    def fits(self, rank: RankFacts) -> bool:
        """Return whether a rank matches. Cheap tests come first, because there may be ten thousand ranks."""
        if self._numbers is not None:
            return rank.number in self._numbers
        if rank.oddity in self._oddities or rank.phase in self._phases or self._is_node(rank.node):
            return True
        return (rank.is_culprit and self._text in Oddity.CULPRIT.word) or self._text in _place(rank.coordinates)

    def _is_node(self, node: str) -> bool:
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = self._text in node.lower()
        return found


_Key = Callable[[RankFacts], Any]
_KEYS: Mapping[int, _Key] = {
    control.RANK_SORT_RANK: lambda one: one.number,
    control.RANK_SORT_STEP: lambda one: (one.step, one.number),
    control.RANK_SORT_STALLED: lambda one: (-one.stalled_s, one.number),
    control.RANK_SORT_MEMORY: lambda one: (-one.memory_bytes, one.number),
    control.RANK_SORT_NODE: lambda one: (one.node, one.number),
}


def check_page(request: control.GetStatusRequest) -> None:
    """Raise ValueError with one line if a request asks for too many ranks, or has a search that cannot be."""
    if request.most_ranks > MOST_LISTED:
        raise ValueError(f"most_ranks is {request.most_ranks}: use at most {MOST_LISTED}, or 0 for all ranks")
    if request.sort not in control.RankSort.values():
        raise ValueError(f"sort is {request.sort}: use 0 to {max(control.RankSort.values())}")
    RankSearch(request.search)


def page_of(
    request: control.GetStatusRequest, facts: Sequence[RankFacts], odd: Collection[Oddity]
) -> tuple[list[RankFacts], int]:
    """Return the ranks on the requested page, and how many are on all pages. ``facts``: all ranks, by number."""
    is_fitting = not request.most_ranks or len(facts) <= request.most_ranks
    is_plain = request.sort == control.RANK_SORT_UNSPECIFIED and not request.search.strip()
    found = list(facts)
    if request.only_odd or (is_plain and not is_fitting):
        found = [one for one in found if one.oddity in odd or one.is_culprit]
    if request.search.strip():
        search = RankSearch(request.search)
        found = [one for one in found if search.fits(one)]
    if not (is_plain and is_fitting):
        odd_first: _Key = lambda one: (not one.is_culprit, one.oddity not in odd, one.oddity, one.number)  # noqa: E731
        found.sort(key=_KEYS.get(request.sort, odd_first), reverse=request.is_reversed)
    end = request.skip_ranks + request.most_ranks if request.most_ranks else None
    return found[request.skip_ranks : end], len(found)


def _place(coordinates: Mapping[str, int]) -> str:
    return " ".join(f"{axis}{index}" for axis, index in sorted(coordinates.items())).lower()
