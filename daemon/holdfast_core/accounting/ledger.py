"""Keeps the account of a run's wall time. The other parts of the core report here what happens to the run.

A finished step settles the account up to its end. What lies before it, and after the step before, is classified then:
only the step shows whether the run had stood still, or a verdict had stopped it. A new generation and the end of the
run settle it too. The time since then is shown by what the run does now, and may be classified anew.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from holdfast_core.accounting import account, phase_watch
from holdfast_core.accounting.phase_watch import split_step, stalled_s
from holdfast_core.model import CoreState
from holdfast_core.tick import Tick
from holdfast_proto import vocabulary as uses
from holdfast_proto.v1 import store_pb2 as store

CLOCK_SLACK_S = 5.0
"""Difference of two clocks that is not corrected. A node's state may be almost four seconds old."""

CLOCK_SMOOTHING = 0.02
"""Weight of a state that shows a smaller lead of its node's clock. It may be late, for example after an outage."""

_STOPPED = (store.RUN_PHASE_GATHERING, store.RUN_PHASE_STOPPING)
"""Phases of a run that a verdict has stopped, while its generation is still the old one."""

_TRAINS = (store.RUN_PHASE_RUNNING, store.RUN_PHASE_LEAVING)


def open_account(tick: Tick) -> None:
    """Open the account if there is none: at the time at which the run was created, or now if that is not known."""
    if tick.record.HasField("time_use"):
        return
    created_unix_s = tick.state.spec.created_unix_s
    since_unix_s = min(created_unix_s, tick.now) if created_unix_s else tick.now
    with tick.edit_record() as record:
        record.time_use.CopyFrom(store.TimeUse(since_unix_s=since_unix_s, reached_step=-1, generation_step=-1))
    if tick.record.generation:  # the record is of a version that kept no account
        adopt(tick)
    if tick.record.phase in uses.ENDED:
        close_account(tick, failed=False)


def adopt(tick: Tick) -> None:
    """Account for the time before this record by what a rank has counted itself: the store has lost the account.

    The rank's finished steps of this generation are evidence. Before them is start-up in the first generation, and
    nothing is known in a later one. So that time is idle, as is what is left.
    """
    rank = _first_trained(tick)
    if rank is None:
        return
    with tick.edit_record() as record:
        book = record.time_use
        since_s = account.settled_until_s(book)
        passed_s = max(0.0, tick.now - book.since_unix_s - since_s)
        stepped_s = min(passed_s, math.fsum(rank.phase_s.values()))
        started_s = max(0.0, rank.first_step_ended_unix_s - book.since_unix_s - since_s)
        start_s = min(passed_s - stepped_s, started_s) if record.generation <= 1 else 0.0
        account.settle(book, split_step(stepped_s, rank.phase_s))
        account.settle(book, {uses.START_UP: start_s, uses.IDLE: passed_s - stepped_s - start_s})
        book.generation_step = book.reached_step = max(-1, rank.progress.step - 1)


def _first_trained(tick: Tick) -> store.RankState | None:
    """Return the first rank of the generation, if it has completed a step."""
    here = (tick.state.nodes.get(name) for name in tick.record.nodes)
    node = next((node for node in here if node is not None and node.generation == tick.record.generation), None)
    rank = node.ranks[0] if node is not None and node.ranks else None
    return rank if rank is not None and rank.steps_done else None


def watch(tick: Tick) -> None:
    """Note what the ranks do now, while the run trains."""
    if tick.record.phase in _TRAINS:
        use = phase_watch.seen_use(tick.state.nodes, tick.record.nodes, tick.record.generation)
        tick.state = replace(tick.state, watched=phase_watch.extended(tick.state.watched, use, tick.now))


def see_clocks(tick: Tick, nodes: Mapping[str, store.NodeState]) -> None:
    """Learn from new states of nodes how far their clocks are ahead of the leader's.

    A state that arrives late shows a lead that is too small. So a larger lead is believed immediately, and a smaller
    one only if many states show it.
    """
    known, before = tick.state.clock_leads_s, tick.state.nodes
    leads_s = {}
    for name, node in nodes.items():
        shown_s = node.reported_unix_s - tick.now
        is_old = name in before and before[name].reported_unix_s == node.reported_unix_s
        if node.reported_unix_s and not is_old:
            lead_s = known.get(name, shown_s)
            leads_s[name] = max(shown_s, lead_s + CLOCK_SMOOTHING * (shown_s - lead_s))
    if leads_s:
        present = {*nodes, *tick.record.nodes}  # machines that were replaced do not come back
        staying = {name: lead_s for name, lead_s in known.items() if name in present}
        tick.state = replace(tick.state, clock_leads_s={**staying, **leads_s})


def by_leaders_clock(tick: Tick, node: str, summary: store.StepSummary) -> store.StepSummary:
    """Return a node's summary with the end of its step by the leader's clock, if the two clocks clearly differ."""
    ahead_s = tick.state.clock_leads_s.get(node, 0.0)
    if abs(ahead_s) <= CLOCK_SLACK_S or not summary.ended_unix_s:
        return summary
    moved = store.StepSummary()
    moved.CopyFrom(summary)
    moved.ended_unix_s = max(0.0, summary.ended_unix_s - ahead_s)
    return moved


def count_step(tick: Tick, summary: store.StepSummary) -> bool:
    """Settle the account up to the end of a finished step; return whether the step is new to the run.

    A step that is in the account already adds nothing, nor does one after the end of the run.
    """
    known, deadlines = tick.record.time_use, tick.state.deadlines
    is_new = summary.step > known.reached_step
    if known.ended_unix_s or summary.step <= known.generation_step:
        return is_new
    start_s, end_s = _place(tick, known, summary)
    whole = split_step(summary.duration_s, summary.phase_s)
    stalled = stalled_s(whole[uses.PRODUCTIVE], deadlines)
    training_s = whole.pop(uses.PRODUCTIVE) - stalled
    # The first step after a restart also warms up: kernels compile, modules load, data begins to flow.
    _add(whole, uses.RESTART if known.restarted else uses.DETECTION, stalled)
    _add(whole, uses.PRODUCTIVE if is_new else uses.REPEATED_STEPS, training_s)
    share = (end_s - start_s) / summary.duration_s if summary.duration_s else 0.0
    with tick.edit_record() as record:
        book = record.time_use
        if book.restarted:
            between = account.around_verdict(book, tick.state.watched, start_s)
        else:
            between = account.outside_of_steps(book, tick.state.watched, start_s, deadlines)
        account.settle(book, between)
        account.settle(book, {use: seconds * share for use, seconds in whole.items()})
        book.reached_step = max(book.reached_step, summary.step)
        book.generation_step = summary.step
        if record.phase not in _STOPPED:  # else the step is from before the verdict
            book.progress_unix_s = book.judged_unix_s = 0.0
            book.restarted = False
    tick.state = replace(tick.state, watched=phase_watch.after(tick.state.watched, known.since_unix_s + end_s))
    return is_new


def _place(tick: Tick, book: store.TimeUse, summary: store.StepSummary) -> tuple[float, float]:
    """Return where a step begins and ends in the account: after what is settled, and not beyond now.

    A new step that seems to end before that was timed by a clock that was set back: it follows on what is settled.
    """
    since_s = account.settled_until_s(book)
    latest_unix_s = min(tick.now, book.judged_unix_s) if tick.record.phase in _STOPPED else tick.now
    latest_s = max(since_s, latest_unix_s - book.since_unix_s)
    end_s = min(latest_s, summary.ended_unix_s - book.since_unix_s) if summary.ended_unix_s else latest_s
    if end_s <= since_s:
        end_s = min(latest_s, since_s + summary.duration_s)
    return max(since_s, end_s - summary.duration_s), end_s


def note_standstill(tick: Tick, last_progress_unix_s: float | None) -> None:
    """Note since when a run stands still. Until a step follows, that time was no part of one, whatever ends the run."""
    book = tick.record.time_use
    if last_progress_unix_s is not None and not (book.judged_unix_s or book.ended_unix_s):
        with tick.edit_record() as record:
            record.time_use.progress_unix_s = min(tick.now, last_progress_unix_s)


def note_verdict(tick: Tick, last_progress_unix_s: float | None) -> None:
    """Note a verdict after which the run must start again, by Holdfast or by its own launcher.

    Only the first one since the newest step counts. If a step of the same generation follows, the run has moved on by
    itself, and the verdict is forgotten.
    """
    book = tick.record.time_use
    if book.judged_unix_s or book.ended_unix_s:
        return
    with tick.edit_record() as record:
        since = tick.now if last_progress_unix_s is None else last_progress_unix_s
        record.time_use.progress_unix_s = min(tick.now, since, book.progress_unix_s or since)
        record.time_use.judged_unix_s = tick.now


def begin_generation(tick: Tick) -> None:
    """Settle the account up to a new generation, unless the run has only tried to start until now."""
    book = tick.record.time_use
    is_restart = bool(book.judged_unix_s) or book.generation_step >= 0
    with tick.edit_record() as record:
        edited = record.time_use
        if is_restart:
            if not edited.judged_unix_s:  # a launcher has started it again before there was any verdict
                edited.progress_unix_s = edited.progress_unix_s or tick.now
                edited.judged_unix_s = tick.now
            account.settle(edited, account.around_verdict(edited, tick.state.watched, _now_s(edited, tick.now)))
            edited.progress_unix_s = edited.judged_unix_s = tick.now
            edited.restarted = True
        edited.generation_step = -1
        if record.counts_anew:
            edited.reached_step = -1  # which of the next steps repeat earlier ones, only the script knows
    tick.state = replace(tick.state, watched=())


def close_account(tick: Tick, *, failed: bool) -> None:
    """Settle the account up to the end of the run. Nothing is added after that."""
    if tick.record.time_use.ended_unix_s:
        return
    watched = phase_watch.lasting(tick.state.watched, tick.now)
    with tick.edit_record() as record:
        book = record.time_use
        until_s = _now_s(book, tick.now)
        if book.judged_unix_s and (failed or book.restarted):
            spent = account.around_verdict(book, watched, until_s)
        else:
            spent = account.outside_of_steps(book, watched, until_s, tick.state.deadlines)
            if failed:  # the step that was under way is lost
                _add(spent, uses.REPEATED_STEPS, spent.pop(uses.PRODUCTIVE, 0.0))
        account.settle(book, spent)
        book.ended_unix_s = book.since_unix_s + until_s
    tick.state = replace(tick.state, watched=())


def time_use(state: CoreState, now: float) -> Mapping[str, float]:
    """Return the seconds of each use, from the creation of the run to ``now`` or to its end.

    All uses are in it, and they sum to the wall time. All are 0 before the account is open.
    """
    book = state.record.time_use
    spent = dict.fromkeys(uses.TIME_USES, 0.0)
    for use, seconds in (*book.settled_s.items(), *_open_uses(state, book, now).items()):
        spent[use] += seconds
    return spent


def goodput_ratio(state: CoreState, now: float) -> float | None:
    """Return the share of the wall time that was productive, 0 to 1; None before any time has passed."""
    spent = time_use(state, now)
    wall_s = math.fsum(spent.values())
    return spent[uses.PRODUCTIVE] / wall_s if wall_s else None


def settled_time_use(state: CoreState) -> Mapping[str, float]:
    """Return the seconds of each use that will not be classified anew: they never decrease."""
    return dict(state.record.time_use.settled_s)


def _open_uses(state: CoreState, book: store.TimeUse, now: float) -> dict[str, float]:
    """Return the uses of the time that is not settled, by what the run does now."""
    if not state.record.HasField("time_use") or book.ended_unix_s:
        return {}
    until_s = _now_s(book, now)
    if book.judged_unix_s:
        return account.around_verdict(book, phase_watch.lasting(state.watched, now), until_s)
    whole = account.outside_of_steps(book, state.watched, until_s, state.deadlines, is_open=True)
    standstill = state.incidents.get(state.record.standstill_incident)
    if standstill is None:
        return whole
    still_since_s = max(account.settled_until_s(book), standstill.last_progress_unix_s - book.since_unix_s)
    still_since_s = min(still_since_s, until_s)
    spent = account.outside_of_steps(book, state.watched, still_since_s, state.deadlines, is_open=True)
    # A standstill in an evaluation, a save or a wait for data is still that: nothing says yet that it is a fault.
    left_s = until_s - still_since_s
    for use in (uses.CHECKPOINT_STALL, uses.EVALUATION, uses.DATA_WAIT):
        more_s = min(left_s, max(0.0, whole.get(use, 0.0) - spent.get(use, 0.0)))
        _add(spent, use, more_s)
        left_s -= more_s
    _add(spent, uses.DETECTION, left_s)
    return spent


def _now_s(book: store.TimeUse, now: float) -> float:
    """Return the present time in the account; never before what is settled, as leaders' clocks may differ."""
    return max(account.settled_until_s(book), now - book.since_unix_s)


def _add(spent_s: dict[str, float], use: str, seconds: float) -> None:
    spent_s[use] = spent_s.get(use, 0.0) + seconds
