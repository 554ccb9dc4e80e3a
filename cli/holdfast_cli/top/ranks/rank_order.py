"""Sorts and filters ranks for the table."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from operator import itemgetter
from typing import Any

from holdfast_cli.top.ranks.oddity import JudgedRank, JudgedRanks, Oddity
from holdfast_cli.views.clean_text import one_line
from holdfast_cli.views.phrases import place_text, rank_phase_text
from holdfast_proto.v1.control_pb2 import RankView


class SortKey(Enum):
    """Column by which ranks are sorted."""

    ODDITY = "odd first"
    RANK = "rank"
    STEP = "step"
    STALLED = "time without progress"
    MEMORY = "memory"
    NODE = "node"


_KEYS: dict[SortKey, Callable[[JudgedRank], Any]] = {
    SortKey.ODDITY: itemgetter(0, 1),
    SortKey.RANK: itemgetter(1),
    SortKey.STEP: lambda rank: (rank.view.step, rank.number),
    SortKey.STALLED: lambda rank: (-rank.view.stalled_s, rank.number),
    SortKey.MEMORY: lambda rank: (-rank.view.memory_bytes, rank.number),
    SortKey.NODE: lambda rank: (rank.view.node, rank.number),
}


class RankSearch:
    """Searches ranks for a text, in lower case. A number is a rank; anything else is searched in its line."""

    def __init__(self, text: str, judged: JudgedRanks) -> None:
        self._text, self._judged = text, judged
        self._number = int(text) if text.isdecimal() else None
        self._nodes = {node: text in one_line(node).lower() for node in judged.nodes}
        self._phases: dict[int, bool] = {}
        self._is_running_found = text in "running"

    def fits(self, rank: JudgedRank) -> bool:
        """Return whether the text is found; cheap tests come first, because there may be ten thousand ranks."""
        if self._number is not None:
            return rank.number == self._number
        view = rank.view
        if self._nodes[view.node] or self._is_in_phase(view):
            return True
        is_running = rank.oddity is Oddity.NORMAL
        if self._is_running_found if is_running else self._text in self._judged.state_text(rank).lower():
            return True
        return self._text in place_text(view).lower()

    def _is_in_phase(self, view: RankView) -> bool:
        found = self._phases.get(view.phase)
        if found is None:
            found = self._phases[view.phase] = self._text in rank_phase_text(view)
        return found


@dataclass(frozen=True)
class RankOrder:
    """Which ranks the table shows, and in what order."""

    key: SortKey = SortKey.ODDITY
    is_reversed: bool = False
    only_odd: bool = False
    text: str = ""
    """A number is a rank; anything else is searched in node, place, phase and state, in lower case."""

    def next_key(self) -> "RankOrder":
        """Return the same with the next column to sort by."""
        keys = list(SortKey)
        return replace(self, key=keys[(keys.index(self.key) + 1) % len(keys)], is_reversed=False)

    def arrange(self, judged: JudgedRanks) -> list[JudgedRank]:
        """Return the ranks to show, in order."""
        ranks = [rank for rank in judged.ranks if rank.oddity.is_odd] if self.only_odd else list(judged.ranks)
        if self.text:
            search = RankSearch(self.text, judged)
            ranks = [rank for rank in ranks if search.fits(rank)]
        ranks.sort(key=_KEYS[self.key], reverse=self.is_reversed)
        return ranks

    def describe(self) -> str:
        """Return in words what is shown."""
        parts = [f"sorted by {self.key.value}" if self.key is not SortKey.ODDITY else self.key.value]
        if self.is_reversed:
            parts.append("reversed")
        if self.only_odd:
            parts.append("only odd ranks")
        if self.text:
            parts.append(f"filter: {self.text}")
        return ", ".join(parts)
