"""The ranks of a run as operators see them: all, or the oddest ones and how many others there are.

A run of thousands of ranks has few that a person must look at. The others differ in little that matters: they are
counted by what they share.
"""

import heapq
import signal
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast_core.model import CoreState
from holdfast_core.reading.attention import open_incident
from holdfast_core.reading.rank_health import (
    EXITED,
    HEALTH,
    LEFT,
    OK,
    STALLED,
    STARTING,
    WAITING,
    StallRule,
    is_behind,
)
from holdfast_core.reading.rank_means import gpu_use_sum, own_time_sum
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store

_ODDEST_FIRST = (EXITED, STALLED, STARTING, WAITING, OK, LEFT)
_HALTED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""


class _Judged(NamedTuple):
    rank: store.RankState
    health: int
    lags: bool


def listed_ranks(
    state: CoreState, ranks: Mapping[int, store.RankState], most: int
) -> tuple[list[control.RankView], list[control.RankGroup]]:
    """Return the ranks to list, and the others by what they share. ``most``: 0 lists all, by number."""
    judged = _judged(state, ranks)
    if not most or len(judged) <= most:
        return _views(state, judged), []
    incident = open_incident(state)
    culprits = frozenset() if incident is None else frozenset(incident.verdict.culprits)
    order = {health: place for place, health in enumerate(_ODDEST_FIRST)}

    def oddness(one: _Judged) -> tuple[bool, int, bool, int]:
        return one.rank.rank not in culprits, order[one.health], not one.lags, one.rank.rank

    listed = heapq.nsmallest(most, judged, key=oddness)
    numbers = {one.rank.rank for one in listed}
    return _views(state, listed), _groups(state, (one for one in judged if one.rank.rank not in numbers))


def _judged(state: CoreState, ranks: Mapping[int, store.RankState]) -> list[_Judged]:
    rule, median_step_s = StallRule.of(state), state.deadlines.median_step_s
    steps = {number: rank.progress.step for number, rank in ranks.items()}
    newest = max(steps.values(), default=-1)
    judged = []
    for number in sorted(ranks):
        health = rule.health_of(ranks[number])
        judged.append(_Judged(ranks[number], health, is_behind(health, steps[number], newest, median_step_s)))
    return judged


def _views(state: CoreState, judged: Iterable[_Judged]) -> list[control.RankView]:
    node_of = {rank.rank: name for name, node in state.members.items() for rank in node.ranks}
    views = []
    for rank, health, lags in judged:
        view = rank_view(rank, node_of[rank.rank], _shown_exit(state, rank))
        view.MergeFrom(control.RankView(health=f"RANK_HEALTH_{HEALTH[health].upper()}", is_behind=lags))
        views.append(view)
    return views


def _groups(state: CoreState, judged: Iterable[_Judged]) -> list[control.RankGroup]:
    groups: dict[Hashable, list[_Judged]] = defaultdict(list)
    for one in judged:
        rank, ending = one.rank, _ending(state, one.rank)
        halted = rank.process_state if rank.process_state in _HALTED else ""
        recorders = tuple([(recorder.source, recorder.backend) for recorder in rank.recorders])
        own_time = (rank.own_time_source, rank.own_time_reason)
        end = None if ending is None else ending.SerializeToString()
        groups[rank.life, halted, one.health, one.lags, end, recorders, own_time].append(one)
    return [control.RankGroup(count=len(alike), like=_shared(state, alike)) for alike in groups.values()]


def _shared(state: CoreState, alike: Sequence[_Judged]) -> control.RankView:
    """Return what the ranks of a group share, the newest of their steps, and the most memory."""
    rank, health, lags = alike[0]
    return control.RankView(
        life=rank.life,
        step=max(one.rank.progress.step for one in alike),
        process_state=rank.process_state if rank.process_state in _HALTED else "",
        exit=_ending(state, rank),
        memory_bytes=max(one.rank.memory.allocated_bytes for one in alike),
        recorders=rank.recorders,
        own_time_source=rank.own_time_source,
        own_time_reason=rank.own_time_reason,
        health=f"RANK_HEALTH_{HEALTH[health].upper()}",
        is_behind=lags,
    )


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
    is_killed = rank.exit.HasField("signal") and rank.exit.signal in (signal.SIGTERM, signal.SIGKILL)
    if state.record.phase != store.RUN_PHASE_STOPPING or not is_killed:
        return rank.exit
    incident = state.incidents.get(state.record.open_incident, store.Incident())
    is_cause = incident.verdict.kind == store.VERDICT_KIND_DEAD_RANK and rank.rank in incident.verdict.culprits
    return rank.exit if is_cause else None


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
