"""Sorts and filters ranks for the table."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from holdfast_cli.top.clean_text import one_line
from holdfast_cli.top.oddity import JudgedRank, JudgedRanks
from holdfast_cli.views.phrases import enum_phrase
from holdfast_proto.v1 import common_pb2
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
    SortKey.ODDITY: lambda rank: (rank.oddity, rank.number),
    SortKey.RANK: lambda rank: rank.number,
    SortKey.STEP: lambda rank: (rank.view.step, rank.number),
    SortKey.STALLED: lambda rank: (-rank.view.stalled_s, rank.number),
    SortKey.MEMORY: lambda rank: (-rank.view.memory_bytes, rank.number),
    SortKey.NODE: lambda rank: (rank.view.node, rank.number),
}


def place_text(view: RankView) -> str:
    """Return the place of a rank in the mesh: ``pp0 tp1``."""
    return one_line(" ".join(f"{axis}{index}" for axis, index in sorted(view.coordinates.items())))


def phase_text(view: RankView) -> str:
    """Return the phase of a rank in words; "" while it is not known."""
    return enum_phrase(common_pb2.Phase, view.phase) if view.phase else ""


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
            ranks = [rank for rank in ranks if self._fits(rank, judged)]
        ranks.sort(key=_KEYS[self.key], reverse=self.is_reversed)
        return ranks

    def _fits(self, rank: JudgedRank, judged: JudgedRanks) -> bool:
        if self.text.isdecimal():
            return rank.number == int(self.text)
        view = rank.view
        texts = (view.node, place_text(view), phase_text(view), judged.state_text(rank))
        return self.text in " ".join(texts).lower()

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
