"""The phases of a run: what happens in each, when the next begins, and which nodes take part."""

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

from holdfast_core import detection, incidents
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import checkpoint_commands, checkpoint_reads, replicas, unused_state
from holdfast_core.model import counted
from holdfast_core.naming import incident_number, kind_name
from holdfast_core.nodes import handover, quarantine, start_patience
from holdfast_core.recovery import (
    hang_aborts,
    leaving,
    missing_nodes,
    new_generation,
    observed,
    resized_state,
    response,
    second_fault,
    standstills,
    suspicion,
)
from holdfast_core.recovery.bad_loss import roll_back
from holdfast_core.recovery.ending import FINISHED, RESEND_S, end_after_training, end_without_restart, ended, finish
from holdfast_core.recovery.restart_patience import has_progressed
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

_TRIED = (store.INCIDENT_STATE_OPEN, store.INCIDENT_STATE_FAILED, store.INCIDENT_STATE_RECOVERED)
"""States of incidents for which a restart was tried."""

EVIDENCE_PATIENCE_S = 20.0
"""Time to wait for the evidence of an incident. An agent needs a second, and longer on a busy node.

An agent carries out the command to stop its ranks only after it has gathered the evidence. So a shorter time would
hardly restart such a run earlier.
"""


def waiting(tick: Tick) -> None:
    """Start the first generation when enough nodes are ready, or take over one that already runs."""
    mine = {name: node for name, node in tick.state.nodes.items() if node.instance == tick.state.spec.instance}
    running = {name: node for name, node in mine.items() if node.generation > 0}
    newest = max((node.generation for node in running.values()), default=0)
    current = {name: node for name, node in running.items() if node.generation == newest}
    for members in (current, running):  # nodes of an older generation may have been replaced: try without them first
        if missing_nodes.is_whole(tick.state.spec, members):
            _take_over(tick, members)
            return
    chosen = start_patience.chosen(tick, [name for name, node in mine.items() if node.ready])
    if chosen and not running:
        with tick.edit_record() as record:
            record.nodes[:] = chosen
        new_generation.begin(tick)


def _take_over(tick: Tick, running: dict[str, store.NodeState]) -> None:
    """Continue from what the nodes report: the store has lost the record."""
    generation = max(node.generation for node in running.values())
    in_rank_order = sorted(running, key=lambda name: min((rank.rank for rank in running[name].ranks), default=0))
    with tick.edit_record() as record:
        record.nodes[:] = in_rank_order
        record.generation = generation
    ledger.adopt(tick)
    tick.enter(store.RUN_PHASE_RUNNING)
    missing_nodes.see_training(tick)


def starting(tick: Tick) -> None:
    """Wait for the first step of all ranks, and judge them by the deadlines of a start."""
    if tick.observes and observed.choose_state(tick):
        return
    record, nodes = tick.record, tick.state.nodes
    failed = [node for node in nodes.values() if node.failed_generation == record.generation]
    if failed:
        if not record.failed_reads:
            incidents.add_line_to_open(tick, f"generation {record.generation} could not start: {failed[0].failure}")
        _stop(tick, failed[0].failure)
        return
    behind = [name for name in record.nodes if name in nodes and nodes[name].generation < record.generation]
    if behind and tick.now - tick.state.sent_unix_s > RESEND_S:
        new_generation.send_start(tick, behind, tick.world_size)
    ranks = tick.ranks
    if len(ranks) == tick.world_size and not ranks.untrained:
        ended = max(rank.first_step_ended_unix_s for rank in ranks.values())
        tick.enter(store.RUN_PHASE_RUNNING)
        missing_nodes.see_training(tick)
        hang_aborts.see_first_steps(tick)
        roll_back.see_first_steps(tick)
        incidents.close(tick, store.INCIDENT_STATE_RECOVERED, "training again", recovered_unix_s=ended)
    running(tick)


def running(tick: Tick) -> None:
    """Judge the ranks, and finish the run after its last step.

    Of several verdicts on why the run stands still, the first in the registry wins.
    """
    if leaving.all_left(tick):
        if unused_state.refuse(tick):
            return
        incidents.close(tick, store.INCIDENT_STATE_RECOVERED, "the run finished", recovered_unix_s=tick.now)
        finish(tick, store.RUN_PHASE_FINISHED, FINISHED)
        return
    if tick.observes and hang_aborts.end_with_launcher(tick):
        return
    standstills.note_pauses(tick)
    if end_after_training(tick):
        return
    suspicion.watch(tick)
    missing_nodes.stop_strays(tick)
    judged_in = tick.record.phase
    is_explained = stands_still = False
    for finding in detection.look_at_tick(tick):
        if finding.stops_the_run and is_explained:
            continue
        is_explained |= finding.stops_the_run
        stands_still |= standstills.is_one(finding)
        response.respond(tick, finding)
        if tick.record.phase != judged_in:
            return
    standstills.settle(tick, is_seen=stands_still)
    if end_without_restart(tick):
        return
    if judged_in == store.RUN_PHASE_RUNNING and tick.record.leave_by_unix_s:
        leaving.begin(tick)
    elif judged_in == store.RUN_PHASE_RUNNING:
        checkpoint_commands.command_by_time(tick)
        replicas.command(tick)
        more_nodes = missing_nodes.grow(tick)
        if more_nodes:
            _stop(tick, more_nodes)


def gathering(tick: Tick) -> None:
    """Wait for the evidence, for a limited time."""
    second_fault.add_to_open(tick)
    present = {name for name in tick.state.evidence_asked or tick.record.nodes if name in tick.state.nodes}
    complete = present <= tick.state.evidence_from
    if complete or tick.now - tick.record.phase_since_unix_s > EVIDENCE_PATIENCE_S:
        incidents.add_line_to_open(
            tick, "evidence gathered" if complete else "evidence is incomplete: a node did not answer in time"
        )
        incident = incidents.open_one(tick)
        if incident:
            quarantine.see_incident(tick, incident)
        if tick.observes:
            hang_aborts.decide(tick)
            return
        missing_nodes.give_up_growth(tick)
        _stop(tick, incident.verdict.message if incident else "")


def _stop(tick: Tick, reason: str) -> None:
    with tick.edit_record() as record:
        record.outcome = reason
    tick.enter(store.RUN_PHASE_STOPPING)
    _send_stop(tick)


def _send_stop(tick: Tick) -> None:
    message = store.StopGeneration(reason=tick.record.outcome)
    tick.send(tick.record.nodes, lambda _: store.NodeCommand(stop=message))


def stopping(tick: Tick) -> None:
    """Wait until no rank of the generation is alive on any node; then start the next generation, or give up.

    In an observed run that is up to the launcher.
    """
    if tick.observes:
        if not hang_aborts.end_with_launcher(tick):
            hang_aborts.await_reaction(tick)
        return
    missing_nodes.take_back(tick)
    missing_nodes.fall_back(tick)
    missing_nodes.replace_lost(tick)
    missing_nodes.shrink(tick)
    record, nodes = tick.record, tick.state.nodes
    here = [nodes.get(name) for name in record.nodes]
    stopped = all(node is not None and node.stopped and _has_obeyed(node, record.generation) for node in here)
    if not stopped:
        if tick.now - tick.state.sent_unix_s > RESEND_S:
            _send_stop(tick)
        return
    if start_patience.must_wait(tick) or handover.must_wait(tick):
        return
    if checkpoint_reads.may_be_unreadable(tick) or not resized_state.has_state(tick):
        return
    unread = checkpoint_reads.failure(tick)
    if unread:  # not counted as a restart without a new step: the files are missing
        if checkpoint_reads.may_try_again(tick, unread):
            new_generation.begin(tick)
        return
    # Restarts for uncertain signs are counted apart: they never fail a run that may only be slow.
    stuck = _restarts_without_progress(tick)
    limit = tick.state.spec.restarts_without_progress
    if stuck > limit:
        reason = _why_given_up(tick, limit)
        incidents.close(tick, store.INCIDENT_STATE_FAILED, reason)
        finish(tick, store.RUN_PHASE_FAILED, reason)
        return
    current = incidents.open_one(tick)
    if current is not None:
        with incidents.edit(tick, current) as incident:
            incident.reached_step = record.newest_step
        totals, kind = tick.state.totals, kind_name(current.verdict.kind)
        tick.state = replace(tick.state, totals=replace(totals, restarts=counted(totals.restarts, kind)))
    with tick.edit_record() as edited:
        edited.restarts_without_progress = stuck
        edited.restarts_total = record.restarts_total + 1
        edited.outcome = ""
    incidents.add_line_to_open(tick, f"ranks of generation {record.generation} are gone")
    new_generation.begin(tick)


def _has_obeyed(node: store.NodeState, generation: int) -> bool:
    """Whether a node has had ranks of a generation, or is a spare that has never had any of this run."""
    return generation in (node.generation, node.failed_generation) or (node.ready and not node.generation)


def _restarts_without_progress(tick: Tick) -> int:
    """Return how many restarts in a row for certain signs have followed on one that brought no new step."""
    record = tick.record
    if replicas.see_failed_start(tick):  # not counted: the next start is from an older state
        return record.restarts_without_progress
    if has_progressed(record):
        return 0
    return record.restarts_without_progress + (not record.restart_is_uncertain)


def _why_given_up(tick: Tick, limit: int) -> str:
    """Return the last line of a run that is not started again: what began it, and not only what came last.

    If the same rank ended or hung at the same step each time, it says so: the data or the state of that step does it.
    """
    outcome = tick.record.outcome
    newest_first = sorted(tick.state.incidents, key=incident_number, reverse=True)
    tried = [tick.state.incidents[name] for name in newest_first]
    tried = [incident for incident in tried if incident.state in _TRIED]
    verdicts = [incident.verdict for incident in tried]
    same = list(takewhile(lambda one: _place(one) == _place(verdicts[0]), verdicts))
    if len(same) > limit and same[0].culprits:
        step = "before the first step" if same[0].step < 0 else f"at step {same[0].step}"
        times = f"rank {same[0].culprits[0]} fails {step} each time, {len(same)} times in a row"
        cause = ", so its data or state there is the likely cause" if same[0].step >= 0 else ""
        return f"{times}{cause}: {outcome}"
    since = [one.verdict.message for one in takewhile(lambda one: one.reached_step == tick.record.newest_step, tried)]
    given_up = f"{limit} restarts in a row brought no new step"
    if not since or since[-1] == outcome:
        return f"{given_up}: {outcome}"
    return f"{given_up}. It began with this: {since[-1]}. The last start failed with this: {outcome}"


def _place(verdict: store.Verdict) -> tuple[int, list[int], int]:
    return verdict.kind, list(verdict.culprits[:1]), verdict.step


HANDLERS: dict[int, Callable[[Tick], None]] = {
    store.RUN_PHASE_WAITING: waiting,
    store.RUN_PHASE_STARTING: starting,
    store.RUN_PHASE_RUNNING: running,
    store.RUN_PHASE_GATHERING: gathering,
    store.RUN_PHASE_STOPPING: stopping,
    store.RUN_PHASE_FINISHED: ended,
    store.RUN_PHASE_FAILED: ended,
    store.RUN_PHASE_LEAVING: leaving.leaving,
}
