"""The ranks of a run as operators see them: all, or a page of them and how many others there are.

A run of thousands of ranks has few that a person must look at. The others differ in little that matters: they are
counted by what they share.
"""

import signal
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast_core.model import CoreState
from holdfast_core.reading.attention import open_incident, urgent_incident
from holdfast_core.reading.rank_health import HEALTH, StallRule, is_behind, is_in_pause
from holdfast_core.reading.rank_means import gpu_use_sum, own_time_sum
from holdfast_daemon.control.rank_pages import Oddity, RankFacts, odd_kinds, oddity_counts, oddity_of, page_of
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

_HALTED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""
_KILLED = (signal.SIGTERM, signal.SIGKILL)
SLOW_KINDS = (store.VERDICT_KIND_STRAGGLER, store.VERDICT_KIND_DATA_STALL, store.VERDICT_KIND_THROUGHPUT_DROP)
"""Verdicts whose culprits are slow, and do train."""


class _Judged(NamedTuple):
    rank: store.RankState
    health: int
    facts: RankFacts


class ListedRanks(NamedTuple):
    """A page of ranks, the others by what they share, and numbers of all."""

    views: list[control.RankView]
    others: list[control.RankGroup]
    counts: Mapping[Oddity, int]
    matching: int
    odd: int


def listed_ranks(
    state: CoreState, ranks: Mapping[int, store.RankState], request: control.GetStatusRequest
) -> ListedRanks:
    """Return the ranks on the requested page, and the others by what they share."""
    judged, is_pausing = _judged(state, ranks)
    facts = [one.facts for one in judged.values()]
    counts = oddity_counts(facts)
    odd = odd_kinds(counts, is_explained=is_pausing or bool(culprits_of(state)))
    page, matching = page_of(request, facts, odd)
    numbers = {one.number for one in page}
    return ListedRanks(
        _views(state, [judged[one.number] for one in page]),
        _groups(state, (one for number, one in judged.items() if number not in numbers)),
        counts,
        matching,
        sum(number for kind, number in counts.items() if kind in odd),
    )


def culprits_of(state: CoreState) -> Collection[int]:
    """Return the ranks that the present incident names; of a failed run, those of the reason."""
    has_ended = state.record.phase in ENDED
    incident = urgent_incident(state, 0.0) if has_ended else open_incident(state)
    is_named = incident is not None and incident.verdict.kind not in SLOW_KINDS
    return frozenset(incident.verdict.culprits) if incident is not None and is_named else frozenset()


def slow_ranks_of(state: CoreState) -> Collection[int]:
    """Return the ranks that an incident of this generation calls slow."""
    return {
        rank
        for incident in state.incidents.values()
        if incident.verdict.kind in SLOW_KINDS
        and incident.state == store.INCIDENT_STATE_NOTED
        and incident.generation == state.record.generation
        for rank in incident.verdict.culprits
    }


def shows_exit(state: CoreState, number: int, *, is_killed: bool) -> bool:
    """Return whether a rank that has ended is shown so: not if it was most likely this run's own restart."""
    if state.record.phase != store.RUN_PHASE_STOPPING or not is_killed:
        return True
    incident = state.incidents.get(state.record.open_incident, store.Incident())
    return incident.verdict.kind == store.VERDICT_KIND_DEAD_RANK and number in incident.verdict.culprits


def is_killed(rank: store.RankState) -> bool:
    """Return whether a signal has ended a rank with which Holdfast ends ranks, too."""
    return rank.HasField("exit") and rank.exit.HasField("signal") and rank.exit.signal in _KILLED


def is_halted(rank: store.RankState) -> bool:
    """Return whether a signal or a debugger has stopped a rank."""
    return rank.process_state in _HALTED


def _judged(state: CoreState, ranks: Mapping[int, store.RankState]) -> tuple[dict[int, _Judged], bool]:
    """Return all ranks by number, and whether one of them is in a marked pause."""
    rule, median_step_s = StallRule.of(state), state.deadlines.median_step_s
    node_of = {rank.rank: name for name, node in state.members.items() for rank in node.ranks}
    culprits, slow = culprits_of(state), slow_ranks_of(state)
    newest = max((rank.progress.step for rank in ranks.values()), default=-1)
    judged, is_pausing = {}, False
    for number in sorted(ranks):
        rank = ranks[number]
        progress, health = rank.progress, rule.health_of(rank)
        is_pausing = is_pausing or is_in_pause(rank.life, progress.phase, health)
        oddity = oddity_of(
            health,
            shows_exit=_shown_exit(state, rank) is not None,
            is_halted=is_halted(rank),
            is_culprit=number in culprits,
            is_behind=is_behind(health, progress.step, newest, median_step_s),
            is_slow=number in slow,
        )
        facts = RankFacts(
            oddity,
            number,
            node_of[number],
            progress.step,
            rank.stalled_s,
            rank.memory.allocated_bytes,
            progress.phase,
            rank.coordinates,
            number in culprits,
        )
        judged[number] = _Judged(rank, health, facts)
    return judged, is_pausing


def _views(state: CoreState, judged: Iterable[_Judged]) -> list[control.RankView]:
    views = []
    for rank, health, facts in judged:
        view = rank_view(rank, facts.node, _shown_exit(state, rank))
        view.MergeFrom(_judgement(health, facts))
        views.append(view)
    return views


def _judgement(health: int, facts: RankFacts) -> control.RankView:
    return control.RankView(
        health=f"RANK_HEALTH_{HEALTH[health].upper()}",
        is_behind=facts.oddity is Oddity.BEHIND,
        oddity=control.RankOddity.Name(facts.oddity),
    )


def _groups(state: CoreState, judged: Iterable[_Judged]) -> list[control.RankGroup]:
    groups: dict[Hashable, list[_Judged]] = defaultdict(list)
    for one in judged:
        rank, ending = one.rank, _ending(state, one.rank)
        halted = rank.process_state if rank.process_state in _HALTED else ""
        recorders = tuple([(recorder.source, recorder.backend) for recorder in rank.recorders])
        own_time = (rank.own_time_source, rank.own_time_reason)
        end = None if ending is None else ending.SerializeToString()
        groups[rank.life, halted, one.health, one.facts.oddity, end, recorders, own_time].append(one)
    return [control.RankGroup(count=len(alike), like=_shared(state, alike)) for alike in groups.values()]


def _shared(state: CoreState, alike: Sequence[_Judged]) -> control.RankView:
    """Return what the ranks of a group share, the newest of their steps, and the most memory."""
    rank, health, facts = alike[0]
    shared = control.RankView(
        life=rank.life,
        step=max(one.rank.progress.step for one in alike),
        process_state=rank.process_state if rank.process_state in _HALTED else "",
        exit=_ending(state, rank),
        memory_bytes=max(one.rank.memory.allocated_bytes for one in alike),
        recorders=rank.recorders,
        own_time_source=rank.own_time_source,
        own_time_reason=rank.own_time_reason,
    )
    shared.MergeFrom(_judgement(health, facts))
    return shared


def _ending(state: CoreState, rank: store.RankState) -> store.RankExit | None:
    """Return the code or the signal of a shown exit: its step and more differ between ranks that end alike."""
    shown = _shown_exit(state, rank)
    if shown is None:
        return None
    ending = store.RankExit()
    if shown.HasField("signal"):
        ending.signal = shown.signal
    if shown.HasField("code"):
        ending.code = shown.code
    return ending


def _shown_exit(state: CoreState, rank: store.RankState) -> store.RankExit | None:
    """Return how a rank ended; None while it lives, and if it was most likely this run's own restart that ended it."""
    if not rank.HasField("exit"):
        return None
    return rank.exit if shows_exit(state, rank.rank, is_killed=is_killed(rank)) else None


def rank_view(rank: store.RankState, node: str, shown_exit: store.RankExit | None) -> control.RankView:
    """Return what operators see of a rank."""
    own_time, gpu_use = own_time_sum(rank), gpu_use_sum(rank)
    return control.RankView(
        rank=rank.rank,
        node=node,
        life=rank.life,
        step=rank.progress.step,
        phase=rank.progress.phase,
        process_state=rank.process_state,
        stalled_s=rank.stalled_s,
        coordinates=rank.coordinates,
        pid=rank.pid,
        memory_bytes=rank.memory.allocated_bytes,
        memory_limit_bytes=rank.memory.limit_bytes,
        exit=shown_exit,
        recorders=rank.recorders,
        own_time_source=rank.own_time_source,
        own_time_reason=rank.own_time_reason,
        own_time_s=own_time.total,
        own_steps=own_time.parts,
        gpu_use_sum=gpu_use.total,
        gpu_use_samples=gpu_use.parts,
    )
