"""Says how much of the parameters' memory is compared between ranks, from what ranks report in their first step."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_core.detectors.numbers.learned_replicas import LEARNING_LOOKS, LearnedReplicas
from holdfast_proto.v1 import store_pb2 as store

_NEARLY_ALL = 0.99
"""Share from which nothing is said."""


@dataclass(frozen=True)
class Coverage:
    """What the ranks of a generation hold, in bytes, over all ranks."""

    ranks: int = 0
    """Ranks that have reported it."""
    replica_bytes: int = 0
    parameter_bytes: int = 0
    plain_ranks: tuple[int, ...] = ()
    """Ranks without replicas that are known, and with plain parameters: the looks show whether those are replicas."""

    def with_more(self, reported: Sequence[store.RankCoverage]) -> "Coverage":
        """Return the coverage with the reports of further ranks."""
        plain = (one.rank for one in reported if one.plain_bytes and not one.replica_bytes)
        return Coverage(
            ranks=self.ranks + len(reported),
            replica_bytes=self.replica_bytes + sum(one.replica_bytes for one in reported),
            parameter_bytes=self.parameter_bytes + sum(one.parameter_bytes for one in reported),
            plain_ranks=tuple(sorted({*self.plain_ranks, *plain})),
        )

    def note(self, learned: LearnedReplicas) -> str | None:
        """Return what an operator should know at the start of a run; "" if nothing; None while that is not known."""
        if not self.ranks:
            return None
        if self.replica_bytes:
            share = self.replica_bytes / max(self.replica_bytes, self.parameter_bytes)
            is_enough = share >= _NEARLY_ALL or bool(self.plain_ranks)
            only = f"silent corruption is looked for only in {share:.1%} of the parameters' memory"
            return "" if is_enough else f"{only}: the rest has no copy on another rank"
        if self.plain_ranks and not learned.are_none:
            return "" if learned.is_learned else None
        return f"silent corruption is not looked for: {self._why_nothing()}"

    def _why_nothing(self) -> str:
        if not self.parameter_bytes:
            return "no parameters are in the state given to attach()"
        if self.ranks == 1:
            return "only one rank reports its parameters"
        if self.plain_ranks:
            return "no rank was seen to hold the same parameters as another rank"
        return "no rank holds a copy of another rank's parameters"

    def unseen(self, rank: int, learned: LearnedReplicas) -> str:
        """Return why a flipped bit in this rank's parameters would not be seen, as far as the looks decide; else ""."""
        if rank not in self.plain_ranks or learned.has_replica(rank):
            return ""
        if learned.are_none or learned.is_learned:
            return f"nobody could see it: no other rank was seen to hold the same parameters as rank {rank}"
        looks = f"{learned.looks} of {LEARNING_LOOKS} looks"
        return f"it is not known yet whether another rank holds the same parameters ({looks}): try again later"
