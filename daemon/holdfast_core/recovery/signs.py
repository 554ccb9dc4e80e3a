"""Judges how certain it is that a run needs a restart that stands still: see restart_patience.py for the table."""

from dataclasses import dataclass

from holdfast_core.detectors.view import View
from holdfast_core.naming import phase_name
from holdfast_core.recovery.restart_patience import MARKED, PAUSES, RestartPatience, Sign
from holdfast_core.texts.activities import after_worker
from holdfast_core.texts.places import after
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

PROBE_LAG_S = 2.0
"""Agents look at a process tree about once a second, and only when the rank has stalled for a while."""

_BUSY_WAIT = "cpu"
"""How a rank on a GPU waits for its device: it spins."""


_PAUSE_RATIO = 3.0
"""How long a pause between two signs of life may be, as a multiple of the time in which they came: a script that tries
again with growing pauses doubles or triples each."""

_SEEN = {"wakes": "it woke", "writes": "it wrote something"}


@dataclass(frozen=True)
class Judgement:
    """Whether a standstill has lasted long enough for a restart."""

    is_due: bool
    sign: Sign
    reason: str = ""
    """For people, if it is due."""


_WAIT = Judgement(False, Sign.NONE)


def judge(view: View, verdict: store.Verdict, patience: RestartPatience) -> Judgement:
    """Judge a verdict of the kinds that only time confirms."""
    for held in verdict.hang.ranks:
        if held.gpu_fault.fatal and held.rank in view.late:
            return Judgement(True, Sign.CERTAIN, f"rank {held.rank} stands still{after(held.gpu_fault)}")
        rank = view.late.get(held.rank)
        if rank is not None and held.lost_worker.pid and _still_for(rank, view.deadlines.floor_s):
            return Judgement(True, Sign.CERTAIN, f"rank {held.rank} waits for data{after_worker(held.lost_worker)}")
    match verdict.kind:
        case store.VERDICT_KIND_MISMATCHED_ORDER if not _has_left_training(verdict):
            return _mismatch(view, verdict, patience)
        case store.VERDICT_KIND_TRANSPORT:
            return _transport(view, verdict, patience)
        case store.VERDICT_KIND_STANDSTILL:
            return by_time_alone(view, patience)
    judged = [_culprit(view, rank, patience) for rank in verdict.culprits]
    return min(judged, key=lambda one: (not one.is_due, one.sign), default=_WAIT)


def is_at_work(
    view: View, verdict: store.Verdict, patience: RestartPatience, *, phases_are_guessed: bool = False
) -> bool:
    """Whether what stands still is a phase that the script has marked, and the ranks in question work in it.

    Only two kinds of verdicts rest on time alone: that others wait for a rank, and that nobody is known to wait.
    ``phases_are_guessed``: the script marks nothing. If then nobody is known to wait, any phase may be an evaluation.
    """
    match verdict.kind:
        case store.VERDICT_KIND_HUNG_COLLECTIVE:
            culprits = [view.ranks.get(rank) for rank in verdict.culprits]
            return bool(culprits) and all(rank is not None and _works(view, rank, patience) for rank in culprits)
        case store.VERDICT_KIND_STANDSTILL:
            alive = [rank for rank in view.ranks.values() if rank.life != store.LIFE_EXITED]
            working = [_works(view, rank, patience, is_guess=phases_are_guessed) for rank in alive]
            # A rank that waits for its device spins, and looks like one that works. So one that is still counts there.
            return any(working) and (all(working) or not view.uses_devices)
    return False


def is_any_at_work(view: View, verdict: store.Verdict) -> bool:
    """Whether something moves in the processes of one of the culprits, or of any rank if there is no culprit."""
    numbers = verdict.culprits or list(view.ranks)
    return any(_moves(view, view.ranks[number]) for number in numbers if number in view.ranks)


def _works(view: View, rank: store.RankState, patience: RestartPatience, *, is_guess: bool = False) -> bool:
    """Whether the rank works in a marked phase, and not for too long. ``is_guess``: any phase may be a marked one."""
    phase = rank.progress.phase if rank.progress.phase in MARKED or not is_guess else common.PHASE_EVAL
    return phase in MARKED and _moves(view, rank) and rank.stalled_s < patience.at_work_s(phase)


def _moves(view: View, rank: store.RankState) -> bool:
    """Whether something has moved in the rank's process tree within the deadline of its phase."""
    if rank.traced or rank.process_state == "T" or rank.HasField("exit") or not rank.moved:
        return False
    return not _still_for(rank, view.deadlines.deadline_s(rank.progress.phase, rank.steps_done))


def _has_left_training(verdict: store.Verdict) -> bool:
    """Whether the culprits of a mismatch are through with their program: they are judged like other ranks that left."""
    return any(side.left for side in verdict.mismatch.sides)


def _mismatch(view: View, verdict: store.Verdict, patience: RestartPatience) -> Judgement:
    """Different calls at one number speak for themselves. A circle needs all of its ranks to be still."""
    if view.mismatched_call is not None:
        return Judgement(True, Sign.CERTAIN, "the calls of ranks do not match")
    members = [view.known_ranks[rank] for rank in verdict.culprits if rank in view.known_ranks]
    if not members:  # recorders show that calls differ, and not whose is wrong
        return by_time_alone(view, patience)
    if set(view.wait_analysis.cycle) == set(verdict.culprits):
        # One that moves may be on its way to the call that the others wait for.
        if all(_is_still(rank) for rank in members):
            return Judgement(True, Sign.CERTAIN, "ranks wait for each other in a circle, and none of them moves")
        return _slowest(view, members, patience)
    if all(_still_for(rank, patience.likely_s(rank.progress.phase)) for rank in members):
        return Judgement(True, Sign.LIKELY, _nothing_moves(members))
    return _slowest(view, members, patience)


def _transport(view: View, verdict: store.Verdict, patience: RestartPatience) -> Judgement:
    """All have arrived and nothing completes: data that still moves is a slow link, not a dead one."""
    arrived = (
        call for call in view.wait_analysis.everyone_arrived if (call.group, call.seq) == (verdict.group, verdict.seq)
    )
    call = next(arrived, None)
    ranks = (
        list(view.ranks.values()) if call is None else [view.ranks[rank] for rank in call.held if rank in view.ranks]
    )
    is_device_busy = view.uses_devices and not view.all_devices_have_arrived
    if ranks and not is_device_busy and all(_waits_for(rank, patience) for rank in ranks):
        return Judgement(True, Sign.LIKELY, "all ranks are in the call, and nothing moves")
    return _slowest(view, ranks, patience)


def _waits_for(rank: store.RankState, patience: RestartPatience) -> bool:
    least_s = patience.likely_s(rank.progress.phase)
    spins = rank.moved == _BUSY_WAIT and rank.device and not rank.device.startswith("cpu")
    return (spins and rank.stalled_s >= least_s) or _still_for(rank, least_s)


def by_time_alone(view: View, patience: RestartPatience) -> Judgement:
    """Judge a run in which no rank is known to be the cause."""
    ranks = [rank for rank in view.ranks.values() if rank.life != store.LIFE_EXITED]
    if view.all_stopped:
        since_s = min((rank.stalled_s for rank in ranks), default=0.0)
        is_due = since_s >= patience.suspended_s
        return Judgement(is_due, Sign.NONE, f"all ranks have been stopped for {since_s:.0f} s")
    return _slowest(view, ranks, patience)


def _culprit(view: View, number: int, patience: RestartPatience) -> Judgement:
    rank = view.known_ranks.get(number)
    if rank is None:
        return _WAIT
    if rank.HasField("exit"):
        return Judgement(True, Sign.EXIT, f"rank {number} has ended, and others wait for it")
    phase = rank.progress.phase
    holds_a_call = view.holds_a_call_alone(number)
    if rank.process_state == "T" and not rank.traced:
        if view.alone_stopped_s(rank) >= view.deadlines.floor_s:
            return Judgement(True, Sign.CERTAIN, f"rank {number} is stopped, and no other rank is")
        is_waited_for = True
    else:
        # Ranks that all pause wake one after another. The first that calls has not waited for the others so far.
        is_waited_for = view.awaited_s(number) >= patience.likely_s(phase)
        is_waited_for &= holds_a_call or view.waits_off_its_device(number)
    if phase == common.PHASE_DATA and _waits_for_data_with_all(view):
        return _WAIT
    hidden = _may_wait_for(view, rank, patience)
    may_be_likely = is_waited_for and not rank.traced and phase not in PAUSES and not hidden
    is_still = _waits_for(rank, patience) if holds_a_call else _still_for(rank, patience.likely_s(phase))
    if may_be_likely and is_still and not _may_wake(rank):
        alone = f"rank {number} alone holds a call that is over on all others"
        return Judgement(True, Sign.LIKELY, alone if holds_a_call else _nothing_moves([rank]))
    return _slowest(view, [rank, *hidden], patience)


def _may_wait_for(view: View, root: store.RankState, patience: RestartPatience) -> list[store.RankState]:
    """Return the ranks that also stand still on their own and are not known to hang.

    The root may wait for one of them where no call shows it: in ``new_group``, for a key of the store, for a file.
    """
    least_s = patience.likely_s(root.progress.phase) / 2
    return [
        rank
        for number, rank in view.known_ranks.items()
        if number != root.rank
        and rank.stalled_s >= least_s
        and (rank.traced or rank.progress.phase in PAUSES or not _is_still(rank))
        and not (rank.HasField("exit") or rank.left_training or view.is_in_a_call(number))
    ]


def _waits_for_data_with_all(view: View) -> bool:
    """Whether all ranks wait for data and the processes that load it live: a restart would bring no data."""
    alive = [rank for rank in view.ranks.values() if rank.life != store.LIFE_EXITED]
    return all(rank.progress.phase == common.PHASE_DATA for rank in alive) and any(rank.workers for rank in alive)


def _slowest(view: View, ranks: list[store.RankState], patience: RestartPatience) -> Judgement:
    """Judge several ranks by time alone: the one that has most patience decides."""
    if not ranks:
        return _WAIT
    if _waits_for_data_with_all(view):
        return _WAIT
    judged = [(rank.stalled_s - patience.time_alone_s(rank.progress.phase), rank) for rank in ranks]
    return _by_time(min(judged, key=lambda one: one[0])[1], patience)


def _by_time(rank: store.RankState, patience: RestartPatience) -> Judgement:
    least_s, phase = patience.time_alone_s(rank.progress.phase), phase_name(rank.progress.phase)
    lasted = f"rank {rank.rank} has made no progress in {phase} for {rank.stalled_s:.0f} s, longer than {least_s:.0f} s"
    reason = f"{lasted}{_last_sign(rank)}"
    return Judgement(rank.stalled_s >= least_s, Sign.NONE, reason)


def _is_still(rank: store.RankState) -> bool:
    """Whether the agent has looked at the rank's process tree, and nothing moves."""
    return rank.process_state == "T" or rank.still_s > 0.0


def _still_for(rank: store.RankState, least_s: float) -> bool:
    """Whether nothing has moved for ``least_s``: seen for as long, or since the agent began to look at this stall."""
    seen_whole = rank.stalled_s >= least_s and rank.still_s >= max(least_s / 2, rank.stalled_s - PROBE_LAG_S)
    return _is_still(rank) and not rank.traced and (rank.still_s >= least_s or seen_whole)


def _nothing_moves(ranks: list[store.RankState]) -> str:
    first = max(ranks, key=lambda rank: rank.still_s)
    return f"nothing has moved in the processes of rank {first.rank} for {first.still_s:.0f} s{_last_sign(first)}"


def _may_wake(rank: store.RankState) -> bool:
    """Whether the rank has shown signs of life in this stall, and the next one may still come: it waits with pauses."""
    return bool(rank.sign_of_life) and rank.sign_age_s < _PAUSE_RATIO * (rank.stalled_s - rank.sign_age_s)


def _last_sign(rank: store.RankState) -> str:
    return f", and {_SEEN[rank.sign_of_life]} {rank.sign_age_s:.0f} s ago" if rank.sign_of_life in _SEEN else ""
