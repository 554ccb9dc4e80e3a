"""Judges which ranks are odd, and how odd, so that the one that matters stands first."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from holdfast_cli.top.ranks.rank_speeds import RankSpeeds
from holdfast_cli.views.conditions import Condition, condition, describe
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_NOTED,
    LIFE_RUNNING,
    VERDICT_KIND_DATA_STALL,
    VERDICT_KIND_STRAGGLER,
    VERDICT_KIND_THROUGHPUT_DROP,
    Incident,
)

_NOT_MEASURED = RankSpeeds()
_SLOW = (VERDICT_KIND_STRAGGLER, VERDICT_KIND_DATA_STALL, VERDICT_KIND_THROUGHPUT_DROP)


class Oddity(IntEnum):
    """How odd a rank is. The oddest comes first, so that sorting puts it on top."""

    EXITED = 0
    CULPRIT = 1
    STOPPED = 2
    STALLED = 3
    BEHIND = 4
    SLOW = 5
    STARTING = 6
    WAITING = 7
    NORMAL = 8
    ENDED = 9

    @property
    def is_odd(self) -> bool:
        """Whether a person should look at such a rank."""
        return self < Oddity.STARTING


class JudgedRank(NamedTuple):
    """A rank and how odd it is. They sort from the oddest to the usual, by rank among equals."""

    oddity: Oddity
    number: int
    view: RankView


@dataclass(frozen=True)
class JudgedRanks:
    """All ranks of one status."""

    ranks: tuple[JudgedRank, ...] = ()
    furthest_step: int = -1
    nodes: frozenset[str] = frozenset()
    generation: int = 0
    counts: tuple[int, ...] = (0,) * len(Oddity)
    """Ranks of each oddity."""
    total_steps: int | None = None
    """Steps that the run is to do; None while no rank that has ended has said it."""
    speeds: RankSpeeds = _NOT_MEASURED

    @property
    def present(self) -> list[Oddity]:
        """The kinds of oddity that ranks have, the oddest first."""
        return [kind for kind in Oddity if self.counts[kind]]

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


_BY_CONDITION = {
    Condition.DEAD: Oddity.EXITED,
    Condition.STOPPED: Oddity.STOPPED,
    Condition.STALLED: Oddity.STALLED,
    Condition.STARTING: Oddity.STARTING,
    Condition.WAITING: Oddity.WAITING,
    Condition.RUNNING: Oddity.NORMAL,
    Condition.ENDED: Oddity.ENDED,
    Condition.FINISHED: Oddity.ENDED,
}
_ENDED = (Oddity.EXITED, Oddity.ENDED)
_OF_CONDITION = tuple(_BY_CONDITION[each] for each in Condition)
"""Indexed, because hashing an enum ten thousand times takes long."""


def judge_ranks(
    status: RunStatus, incidents: Iterable[Incident] = (), speeds: RankSpeeds = _NOT_MEASURED
) -> JudgedRanks:
    """Judge all ranks of a status. ``incidents``: those of the run, of which some may name slow ranks."""
    present = status.urgent_incident.verdict  # without culprits if there is none
    culprits = frozenset(() if present.kind in _SLOW else present.culprits)
    slow = {
        rank
        for incident in (*incidents, status.newest_incident)
        if incident.verdict.kind in _SLOW and _is_of_now(incident, status)
        for rank in incident.verdict.culprits
    }
    views = list(status.ranks)  # one object for each rank, made once
    furthest = max((view.step for view in views if view.life == LIFE_RUNNING), default=-1)
    judged, counts, until = [], [0] * len(Oddity), 0
    for view in views:
        number = view.rank
        oddity = _OF_CONDITION[condition(view)]
        if number in culprits and Oddity.EXITED < oddity < Oddity.ENDED:
            oddity = Oddity.CULPRIT
        elif oddity is Oddity.NORMAL:
            if view.is_behind:
                oddity = Oddity.BEHIND
            elif number in slow:
                oddity = Oddity.SLOW
        if oddity in _ENDED:
            until = max(until, view.exit.steps_until)
        counts[oddity] += 1
        judged.append(JudgedRank(oddity, number, view))
    return JudgedRanks(
        ranks=tuple(judged),
        furthest_step=furthest,
        nodes=frozenset([view.node for view in views]),
        generation=status.generation,
        counts=tuple(counts),
        total_steps=until or None,
        speeds=speeds,
    )


def _is_of_now(incident: Incident, status: RunStatus) -> bool:
    return incident.state == INCIDENT_STATE_NOTED and incident.generation == status.generation
