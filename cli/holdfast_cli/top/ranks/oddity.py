"""The ranks of one look, each with its oddity, so that the one that matters stands first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast_cli.control import counted_ranks
from holdfast_cli.top.ranks.rank_speeds import RankSpeeds
from holdfast_cli.views.conditions import Condition, condition, describe
from holdfast_cli.views.narrowing import facts_of, odd_kinds_of
from holdfast_daemon.control.rank_pages import Oddity, RankFacts, oddity_counts
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import LIFE_RUNNING, Incident

_NOT_MEASURED = RankSpeeds()
_ENDED = (Oddity.EXITED, Oddity.ENDED)


class JudgedRank(NamedTuple):
    """A rank and what order and search need of it."""

    facts: RankFacts
    view: RankView

    @property
    def oddity(self) -> Oddity:
        """How the rank differs from the others."""
        return self.facts.oddity

    @property
    def number(self) -> int:
        """The number of the rank."""
        return self.facts.number


@dataclass(frozen=True)
class JudgedRanks:
    """The ranks of one status: all, or those on one page."""

    ranks: tuple[JudgedRank, ...] = ()
    """By number if these are all ranks, else in the order of the page."""
    counts: Mapping[Oddity, int] = field(default_factory=dict)
    """Ranks of the whole run by oddity, the oddest first."""
    odd: frozenset[Oddity] = frozenset()
    """Oddities that a person should look at."""
    skipped: int = 0
    """Ranks of the pages before this one."""
    matching: int = 0
    """Ranks on all pages."""
    furthest_step: int = -1
    nodes: frozenset[str] = frozenset()
    generation: int = 0
    total_steps: int | None = None
    """Steps that the run is to do; None while no rank that has ended has said it."""
    speeds: RankSpeeds = _NOT_MEASURED

    @property
    def size(self) -> int:
        """Number of ranks of the run."""
        return sum(self.counts.values())

    @property
    def is_whole(self) -> bool:
        """Whether these are all ranks of the run."""
        return len(self.ranks) == self.size

    def state_text(self, rank: JudgedRank) -> str:
        """Return the state of a rank in words."""
        judged = condition(rank.view)
        text = describe(rank.view, judged)
        match rank.oddity:
            case Oddity.CULPRIT:
                return "culprit" if judged is Condition.RUNNING else f"culprit: {text}"
            case Oddity.BEHIND:
                return f"{self.furthest_step - rank.view.step} steps behind"
            case Oddity.SLOW:
                return "slow"
        return text


def judge_ranks(
    status: RunStatus, incidents: Iterable[Incident] = (), speeds: RankSpeeds = _NOT_MEASURED, *, skipped: int = 0
) -> JudgedRanks:
    """Return the ranks of a status. ``skipped``: ranks of the pages before this one.

    ``incidents``: those of the run. Only of a daemon that does not judge its ranks, some may name slow ranks.
    """
    views = list(status.ranks)  # one object for each rank, made once
    facts = facts_of(status, views, incidents)
    counts = {kind: status.rank_counts[kind.word] for kind in Oddity if kind.word in status.rank_counts}
    counts = counts or oddity_counts(facts)
    until = max(
        (view.exit.steps_until for one, view in zip(facts, views, strict=True) if one.oddity in _ENDED), default=0
    )
    return JudgedRanks(
        ranks=tuple(map(JudgedRank, facts, views)),
        counts=counts,
        odd=odd_kinds_of(status, counts),
        skipped=skipped,
        matching=status.matching_ranks or len(views),
        furthest_step=max((view.step for view, _ in counted_ranks(status) if view.life == LIFE_RUNNING), default=-1),
        nodes=frozenset([view.node for view in views]),
        generation=status.generation,
        total_steps=until or None,
        speeds=speeds,
    )
