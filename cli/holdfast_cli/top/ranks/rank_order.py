"""Which ranks the table shows, and in what order."""

from dataclasses import dataclass, replace

from holdfast_cli.top.ranks.oddity import JudgedRank, JudgedRanks
from holdfast_daemon.control.rank_pages import page_of
from holdfast_proto.v1.control_pb2 import (
    RANK_SORT_MEMORY,
    RANK_SORT_NODE,
    RANK_SORT_ODD_FIRST,
    RANK_SORT_RANK,
    RANK_SORT_STALLED,
    RANK_SORT_STEP,
    GetStatusRequest,
    RankSort,
)

_KEYS = {
    RANK_SORT_ODD_FIRST: "odd first",
    RANK_SORT_RANK: "sorted by rank",
    RANK_SORT_STEP: "sorted by step",
    RANK_SORT_STALLED: "sorted by time without progress",
    RANK_SORT_MEMORY: "sorted by memory",
    RANK_SORT_NODE: "sorted by node",
}
"""Orders in which ranks can be shown, and their words."""


@dataclass(frozen=True)
class RankOrder:
    """Which ranks the table shows, and in what order."""

    key: "RankSort" = RANK_SORT_ODD_FIRST
    is_reversed: bool = False
    only_odd: bool = False
    text: str = ""
    """What ranks are searched for: see RankSearch."""

    def next_key(self) -> "RankOrder":
        """Return the same with the next column to sort by."""
        keys = list(_KEYS)
        return replace(self, key=keys[(keys.index(self.key) + 1) % len(keys)], is_reversed=False)

    def request(self, skip: int = 0, most: int = 0) -> GetStatusRequest:
        """Return the request of a page of such ranks."""
        return GetStatusRequest(
            most_ranks=most,
            skip_ranks=skip,
            search=self.text,
            only_odd=self.only_odd,
            sort=self.key,
            is_reversed=self.is_reversed,
        )

    def arrange(self, judged: JudgedRanks) -> list[JudgedRank]:
        """Return the ranks to show, in order: those of a page as the daemon has ordered them.

        Raises ValueError if the text cannot be searched for.
        """
        if not judged.is_whole:
            return list(judged.ranks)
        by_number = {rank.number: rank for rank in judged.ranks}
        page, _ = page_of(self.request(), [rank.facts for rank in judged.ranks], judged.odd)
        return [by_number[one.number] for one in page]

    def describe(self) -> str:
        """Return in words what is shown."""
        parts = [_KEYS[self.key]]
        if self.is_reversed:
            parts.append("reversed")
        if self.only_odd:
            parts.append("only odd ranks")
        if self.text:
            parts.append(f"search: {self.text}")
        return ", ".join(parts)
