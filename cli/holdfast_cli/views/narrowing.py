"""A page of the ranks of a status that holds all of them: of a run that has ended, no daemon makes it."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping

from holdfast_cli.views.conditions import Condition, condition
from holdfast_daemon.control.listed_ranks import SLOW_KINDS
from holdfast_daemon.control.rank_pages import Oddity, RankFacts, odd_kinds, oddity_counts, page_of
from holdfast_proto.v1.control_pb2 import GetStatusRequest, RankOddity, RankView, RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_NOTED, Incident

_BY_CONDITION = {
    Condition.DEAD: Oddity.EXITED,
    Condition.STOPPED: Oddity.STOPPED,
    Condition.STALLED: Oddity.STALLED,
    Condition.STARTING: Oddity.STARTING,
    Condition.WAITING: Oddity.WAITING,
    Condition.RUNNING: Oddity.RUNNING,
    Condition.ENDED: Oddity.ENDED,
    Condition.FINISHED: Oddity.ENDED,
}


def narrowed(status: RunStatus, request: GetStatusRequest, incidents: Iterable[Incident] = ()) -> RunStatus:
    """Return the status with the ranks on the requested page only, as a daemon answers.

    ``incidents``: those of the run, of which some may name slow ranks.
    """
    view_of = {view.rank: view for view in sorted(status.ranks, key=lambda one: one.rank)}
    facts = _judged(status, view_of.values(), incidents)
    counts = oddity_counts(facts)
    odd = odd_kinds_of(status, counts)
    page, matching = page_of(request, facts, odd)
    oddity_by_rank = {one.number: one.oddity for one in facts}
    answer = RunStatus()
    answer.CopyFrom(status)
    del answer.ranks[:]
    for one in page:
        view = answer.ranks.add()
        view.CopyFrom(view_of[one.number])
        view.MergeFrom(RankView(oddity=RankOddity.Name(one.oddity)))
    listed = {one.number for one in page}
    _add_groups(answer, [view for number, view in view_of.items() if number not in listed], oddity_by_rank)
    answer.rank_counts.clear()
    answer.rank_counts.update({kind.word: number for kind, number in counts.items()})
    answer.matching_ranks = matching
    answer.odd_ranks = sum(number for kind, number in counts.items() if kind in odd)
    return answer


def facts_of(status: RunStatus, views: Collection[RankView], incidents: Iterable[Incident] = ()) -> list[RankFacts]:
    """Return what order and search need of ranks, as the daemon has judged them, or else as their views show them."""
    if not status.rank_counts:
        return _judged(status, views, incidents)
    culprits = _culprits(status)
    return [_fact(view, Oddity(view.oddity), is_culprit=view.rank in culprits) for view in views]


def odd_kinds_of(status: RunStatus, counts: Mapping[Oddity, int]) -> frozenset[Oddity]:
    """Return the oddities that a person should look at. ``counts``: those of all ranks."""
    return odd_kinds(counts, is_explained=bool(_culprits(status)))


def _judged(status: RunStatus, views: Iterable[RankView], incidents: Iterable[Incident]) -> list[RankFacts]:
    culprits = _culprits(status)
    slow = {
        rank
        for incident in (*incidents, status.newest_incident)
        if incident.verdict.kind in SLOW_KINDS and _is_of_now(incident, status)
        for rank in incident.verdict.culprits
    }
    facts = []
    for view in views:
        number, oddity = view.rank, _BY_CONDITION[condition(view)]
        if number in culprits and Oddity.EXITED < oddity < Oddity.ENDED:
            oddity = Oddity.CULPRIT
        elif oddity is Oddity.RUNNING:
            oddity = Oddity.BEHIND if view.is_behind else Oddity.SLOW if number in slow else oddity
        facts.append(_fact(view, oddity, is_culprit=number in culprits))
    return facts


def _fact(view: RankView, oddity: Oddity, *, is_culprit: bool) -> RankFacts:
    return RankFacts(
        oddity,
        view.rank,
        view.node,
        view.step,
        view.stalled_s,
        view.memory_bytes,
        view.phase,
        view.coordinates,
        is_culprit,
    )


def _culprits(status: RunStatus) -> frozenset[int]:
    present = status.urgent_incident.verdict  # without culprits if there is none
    return frozenset(() if present.kind in SLOW_KINDS else present.culprits)


def _is_of_now(incident: Incident, status: RunStatus) -> bool:
    return incident.state == INCIDENT_STATE_NOTED and incident.generation == status.generation


def _add_groups(answer: RunStatus, views: Iterable[RankView], oddity_by_rank: dict[int, Oddity]) -> None:
    """Count the ranks that are not on the page, by what lines about all ranks need."""
    groups: dict[Hashable, list[RankView]] = defaultdict(list)
    for view in views:
        recorders = tuple([(recorder.source, recorder.backend) for recorder in view.recorders])
        groups[
            condition(view), oddity_by_rank[view.rank], view.own_time_source, view.own_time_reason, recorders
        ].append(view)
    for alike in groups.values():
        group = answer.other_ranks.add(count=len(alike), like=alike[0])
        group.like.step = max(view.step for view in alike)
        group.like.memory_bytes = max(view.memory_bytes for view in alike)
        group.like.MergeFrom(RankView(oddity=RankOddity.Name(oddity_by_rank[alike[0].rank])))
