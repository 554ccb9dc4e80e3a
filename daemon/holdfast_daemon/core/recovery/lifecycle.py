"""The life of a run: what is done in each phase, and when the next begins."""

from collections.abc import Callable
from dataclasses import replace

from holdfast_daemon.core import detection, incidents, standstill
from holdfast_daemon.core.kinds import RECOVERABLE
from holdfast_daemon.core.model import counted
from holdfast_daemon.core.recovery import (
    checkpoint_commands,
    checkpoint_failures,
    checkpoint_reads,
    late_exit,
    leaving,
    membership,
    new_generation,
    response,
    restarts,
    restore,
    suspicion,
)
from holdfast_daemon.core.recovery.ending import FINISHED, RESEND_S, ended, finish
from holdfast_daemon.core.tick import Tick
from holdfast_daemon.core.words import kind_name
from holdfast_proto.v1 import store_pb2 as store

EVIDENCE_PATIENCE_S = 6.0

REASON_PATIENCE_S = 2.0
"""A node says in its state that it could not start a generation, and in an event that it was for its checkpoint, which
may come later."""


def waiting(tick: Tick) -> None:
    """Start the first generation when enough nodes are ready; take over one that already runs."""
    mine = {name: node for name, node in tick.state.nodes.items() if node.instance == tick.state.spec.instance}
    running = {name: node for name, node in mine.items() if node.generation > 0}
    newest = max((node.generation for node in running.values()), default=0)
    current = {name: node for name, node in running.items() if node.generation == newest}
    for members in (current, running):  # those that are behind may have been replaced
        if len(members) == tick.state.spec.nodes:
            _take_over(tick, members)
            return
    ready = sorted(name for name, node in mine.items() if node.ready)
    if len(ready) >= tick.state.spec.nodes and not running:
        with tick.edit_record() as record:
            record.nodes[:] = ready[: tick.state.spec.nodes]
        begin_generation(tick)


def _take_over(tick: Tick, running: dict[str, store.NodeState]) -> None:
    """The store has lost the record, the nodes have not: go on from what they say."""
    generation = max(node.generation for node in running.values())
    in_rank_order = sorted(running, key=lambda name: min((rank.rank for rank in running[name].ranks), default=0))
    with tick.edit_record() as record:
        record.nodes[:] = in_rank_order
        record.generation = generation
    tick.enter(store.RUN_PHASE_RUNNING)


def begin_generation(tick: Tick) -> None:
    """Order every node to start its ranks from the newest state that all can have."""
    new_generation.see_history(tick)
    standstill.drop(tick, "another generation begins")
    record = tick.record
    point = restore.choose(tick.state.members, tick.world_size, record.unreadable_checkpoints, tick.now)
    if point is None:
        checkpoint_reads.refuse_damaged(tick)
        return
    if point.history is not None:
        new_generation.begin_history(tick, point.history)
    known_generations = [record.generation, *(node.checkpoint_generation for node in tick.state.nodes.values())]
    with tick.edit_record() as edited:
        edited.generation = 1 + max(known_generations)
        edited.source = point.source
        edited.resumed_step = point.step
        edited.step_at_restart = record.newest_step
        edited.newest_step = max(record.newest_step, point.step)
    tick.enter(store.RUN_PHASE_STARTING)
    new_generation.forget(tick, after_step=point.step)
    where = {store.SOURCE_SEED: "the seed", store.SOURCE_MEMORY: "memory", store.SOURCE_CHECKPOINT: "a checkpoint"}
    after = "" if point.step < 0 else f" after step {point.step}"
    if not record.failed_reads:  # else it is one of many attempts
        start = f"generation {tick.record.generation} starts from {where[point.source]}{after}"
        incidents.add_line_to_open(tick, start)
        checkpoint_failures.passed_over(tick, point.passed_over, f"{start} instead")
    _send_start(tick, list(tick.record.nodes))


def _send_start(tick: Tick, nodes: list[str]) -> None:
    record, per_node = tick.record, tick.state.spec.ranks_per_node
    first_rank = {name: index * per_node for index, name in enumerate(record.nodes)}

    def command(node: str) -> store.NodeCommand:
        start = store.StartGeneration(
            first_rank=first_rank[node],
            ranks=per_node,
            world_size=tick.world_size,
            rendezvous_node=record.nodes[0],
            source=record.source,
            step=record.resumed_step,
            history=record.history if record.HasField("history") else None,
        )
        return store.NodeCommand(start=start)

    tick.send(nodes, command)


def starting(tick: Tick) -> None:
    """Wait for the first step of all ranks; judge them meanwhile by the deadlines of a start."""
    record, nodes = tick.record, tick.state.nodes
    failed = [node for node in nodes.values() if node.failed_generation == record.generation]
    if failed:
        if not record.failed_reads:
            incidents.add_line_to_open(tick, f"generation {record.generation} could not start: {failed[0].failure}")
        _stop(tick, failed[0].failure)
        return
    behind = [name for name in record.nodes if name in nodes and nodes[name].generation < record.generation]
    if behind and tick.now - tick.state.sent_unix_s > RESEND_S:
        _send_start(tick, behind)
    ranks = tick.ranks
    if len(ranks) == tick.world_size and all(rank.steps_done for rank in ranks.values()):
        ended = max(rank.first_step_ended_unix_s for rank in ranks.values())
        tick.enter(store.RUN_PHASE_RUNNING)
        incidents.close(tick, store.INCIDENT_STATE_RECOVERED, "training again", recovered_unix_s=ended)
    running(tick)


def running(tick: Tick) -> None:
    """Judge the ranks; see the run's end. Of several verdicts on why the run stands still the first wins."""
    if leaving.all_left(tick):
        incidents.close(tick, store.INCIDENT_STATE_RECOVERED, "the run finished", recovered_unix_s=tick.now)
        finish(tick, store.RUN_PHASE_FINISHED, FINISHED)
        return
    standstill.note_pauses(tick)
    if late_exit.end(tick):
        return
    suspicion.watch(tick)
    membership.stop_strays(tick)
    judged_in = tick.record.phase
    is_explained = stands_still = False
    for finding in detection.look_at_tick(tick):
        stops_the_run = finding.verdict.kind in RECOVERABLE
        if stops_the_run and is_explained:
            continue
        is_explained |= stops_the_run
        stands_still |= standstill.is_one(finding)
        response.respond(tick, finding)
        if tick.record.phase != judged_in:
            return
    standstill.settle(tick, is_seen=stands_still)
    if judged_in == store.RUN_PHASE_RUNNING and tick.record.leave_by_unix_s:
        leaving.begin(tick)
    elif judged_in == store.RUN_PHASE_RUNNING:
        checkpoint_commands.command_by_time(tick)


def gathering(tick: Tick) -> None:
    """Wait for the evidence, not for ever."""
    present = {name for name in tick.record.nodes if name in tick.state.nodes}
    complete = present <= tick.state.evidence_from
    if complete or tick.now - tick.record.phase_since_unix_s > EVIDENCE_PATIENCE_S:
        incidents.add_line_to_open(
            tick, "evidence gathered" if complete else "evidence is incomplete: a node did not answer in time"
        )
        incident = incidents.open_one(tick)
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
    """When no rank of the generation is alive anywhere: start the next, or give up."""
    membership.replace_lost(tick)
    record, nodes = tick.record, tick.state.nodes
    here = [nodes.get(name) for name in record.nodes]
    stopped = all(node is not None and node.stopped and _has_obeyed(node, record.generation) for node in here)
    if not stopped:
        if tick.now - tick.state.sent_unix_s > RESEND_S:
            _send_stop(tick)
        return
    if _may_be_unreadable(tick):
        return
    unread = checkpoint_reads.failure(tick)
    if unread:  # no restart that brought nothing: the files are away
        if checkpoint_reads.may_try_again(tick, unread):
            begin_generation(tick)
        return
    # Restarts for uncertain signs are counted apart: they never fail a run that may only be slow.
    stuck = restarts.without_progress(record)
    limit = tick.state.spec.restarts_without_progress
    if stuck > limit:
        reason = restarts.why_given_up(tick, limit)
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
    begin_generation(tick)


def _may_be_unreadable(tick: Tick) -> bool:
    """Whether the word may be on its way that the checkpoint from which a start has failed does not read back."""
    record = tick.record
    failed = any(
        node.failed_generation == record.generation and not node.awaits_files for node in tick.state.nodes.values()
    )
    from_checkpoint = failed and record.source == store.SOURCE_CHECKPOINT
    is_told = record.resumed_step in record.unreadable_checkpoints
    return from_checkpoint and not is_told and tick.now - record.phase_since_unix_s < REASON_PATIENCE_S


def _has_obeyed(node: store.NodeState, generation: int) -> bool:
    """Whether a node has had ranks of a generation, or never any of this run: it has just come to it."""
    return generation in (node.generation, node.failed_generation) or (node.ready and not node.generation)


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
