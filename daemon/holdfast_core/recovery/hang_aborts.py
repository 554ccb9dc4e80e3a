"""Ends hung ranks of an observed run (``--on-hang abort``), so that its launcher ends or restarts the run.

The way is that of a restart: patience, then evidence, then the end. But the run is judged once more after the evidence
has been gathered, and only the culprits are ended. What happens next is up to the launcher. It is noted in the
incident. Until the launcher has done something, the ranks are not judged: they end because of this.

If Holdfast restores the state, a rank that waits for those of a lost node is ended in the same way.
"""

from collections.abc import Iterable
from dataclasses import replace

from holdfast_core import detection, incidents
from holdfast_core.detectors.framework import HANGS, Finding
from holdfast_core.recovery import standstills
from holdfast_core.recovery.ending import RESEND_S, finish
from holdfast_core.recovery.restart_patience import uncertain_restarts
from holdfast_core.texts import hangs
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

REACTION_PATIENCE_S = 60.0
"""Time for a launcher to react to the end of a rank. torchrun gives the other ranks 30 s to end."""

_MOVED = "no rank is ended: the run has moved, or the evidence shows another cause"
_NOT_LOST = "no rank is ended: the node is back, or the ranks that waited for it have moved"


def decide(tick: Tick) -> None:
    """End the ranks now that the evidence has been gathered, if the run still hangs in the same way.

    If ranks have ended by themselves, nothing is to be done: the launcher sees that.
    """
    incident = incidents.open_one(tick)
    if incident is not None and incident.verdict.kind not in HANGS:
        _decide_on_loss(tick, incident)
        return
    finding = _present_cause(tick)
    if (
        incident is None
        or finding is None
        or not standstills.is_one(finding)
        or not standstills.same(incident.verdict, finding.verdict)
        or not standstills.judge(tick, finding).is_due
    ):
        _withdraw(tick, incident)
        return
    repeats = uncertain_restarts(tick.record) + 1
    with tick.edit_record() as record:
        record.uncertain_restarts = repeats
        record.step_at_restart = max(record.step_at_restart, record.newest_step)
    _abort(tick, incident, standstills.of_culprits(tick, finding.verdict))


def _decide_on_loss(tick: Tick, incident: store.Incident) -> None:
    """End a rank that waits for those of a lost node, if it is still lost. After a death, ranks end by themselves.

    Ranks that wait for those of a lost node notice nothing: a node without power closes no connection.
    """
    may_end = incident.verdict.kind == store.VERDICT_KIND_LOST_NODE and tick.state.ends_hung_ranks
    if not may_end or standstills.is_any_ending(tick) or not standstills.stand_in(tick):
        tick.enter(store.RUN_PHASE_STOPPING)
        return
    finding = _present_cause(tick)
    if finding is None or not standstills.same(incident.verdict, finding.verdict):
        _withdraw(tick, incident)
    else:
        _abort(tick, incident, culprits=[])


def end_one(tick: Tick, incident: store.Incident) -> None:
    """End a rank that trains, so that the launcher starts all of them again."""
    _abort(tick, incident, culprits=[], though_it_moves=True)


def _abort(
    tick: Tick, incident: store.Incident, culprits: list[store.EndedRank], *, though_it_moves: bool = False
) -> None:
    """End the culprits. Without one that can be ended, end a rank that waits, or trains."""
    abort = store.HangAbort(
        ranks=culprits or standstills.stand_in(tick), sent_unix_s=tick.now, without_culprit=not culprits
    )
    if though_it_moves:  # no stall of it will be shorter
        for asked in abort.ranks:
            asked.stalled_s = 0.0
    with incidents.edit(tick, incident) as edited:
        edited.abort.CopyFrom(abort)
        edited.actions.add(unix_s=tick.now, what=hangs.ended(abort))
    tick.enter(store.RUN_PHASE_STOPPING)
    _send(tick, list(abort.ranks))


def await_reaction(tick: Tick) -> None:
    """Repeat the command until the ranks have ended, and wait for the launcher."""
    incident = incidents.open_one(tick)
    if incident is None:
        return  # the launcher has ended
    if not incident.HasField("abort"):
        if tick.now - tick.record.phase_since_unix_s >= REACTION_PATIENCE_S:
            incidents.close(tick, store.INCIDENT_STATE_NOTED, hangs.idle_launcher("the launcher", REACTION_PATIENCE_S))
            _judge_again(tick)
        return
    alive = [asked for asked in incident.abort.ranks if _lives(tick, asked)]
    if len(alive) == len(incident.abort.ranks) and all(_has_moved(tick, asked) for asked in alive):
        _withdraw(tick, incident)
        return
    if alive and tick.now - tick.state.sent_unix_s > RESEND_S:
        _send(tick, alive)
    waited_s = tick.now - incident.abort.sent_unix_s
    if not incident.abort.reaction and any(node.relaunched for node in tick.state.nodes.values()):
        with incidents.edit(tick, incident) as edited:
            edited.abort.reaction, edited.abort.after_s = store.LAUNCHER_REACTION_RESTARTED, waited_s
            edited.actions.add(unix_s=tick.now, what=hangs.reaction(edited.abort))
    elif not incident.abort.reaction and waited_s >= REACTION_PATIENCE_S and tick.once("no reaction of the launcher"):
        numbers = [asked.rank for asked in alive]
        incidents.add_line(tick, incident, hangs.no_reaction(incident.abort, numbers, waited_s))
        if numbers and tick.record.HasField("roll_back"):  # they train on, and must be judged
            with tick.edit_record() as record:
                record.ClearField("roll_back")
            incidents.close(tick, store.INCIDENT_STATE_NOTED, "the run is not rolled back: its ranks train on")
            _judge_again(tick)


def see_generation(tick: Tick, generation: int) -> None:
    """Note in the open incident that the launcher has started another generation."""
    incident = incidents.open_one(tick)
    if incident is None:
        return
    if not incident.HasField("abort") or (incident.abort.reaction and incident.abort.generation):
        incidents.add_line(tick, incident, f"the launcher started generation {generation}")
        return
    with incidents.edit(tick, incident) as edited:
        edited.abort.reaction = store.LAUNCHER_REACTION_RESTARTED
        edited.abort.after_s = max(0.0, tick.now - edited.abort.sent_unix_s)
        edited.abort.generation = generation
        edited.actions.add(unix_s=tick.now, what=hangs.reaction(edited.abort))


def see_launcher_end(tick: Tick, nodes: Iterable[str], code: int) -> None:
    """Close the open incident: the launcher of some nodes has ended. ``code``: its exit code as in a shell."""
    tick.state = replace(tick.state, launcher_codes={**tick.state.launcher_codes, **dict.fromkeys(nodes, code)})
    incident = incidents.open_one(tick)
    if incident is None or not tick.observes or (tick.state.saves and not _have_ended(tick)):
        return
    what = hangs.launcher_end(code)
    if incident.HasField("abort") and not incident.abort.reaction:
        with incidents.edit(tick, incident) as edited:
            edited.abort.reaction = store.LAUNCHER_REACTION_ENDED
            edited.abort.after_s = max(0.0, tick.now - edited.abort.sent_unix_s)
            edited.abort.code = code
            what = hangs.reaction(edited.abort)
    incidents.close(tick, store.INCIDENT_STATE_FAILED if code else store.INCIDENT_STATE_RESOLVED, what)


def end_with_launcher(tick: Tick) -> bool:
    """End a run whose state is saved, once its launchers have failed and all ranks have ended; return whether it has.

    A launcher that is left may start the ranks again, on a spare in place of a node that has none. The newest snapshots
    become a checkpoint, for the next start.
    """
    codes = tick.state.launcher_codes
    failed = next(filter(None, codes.values()), 0)
    if not (tick.state.saves and failed and tick.state.members.keys() <= codes.keys() and _have_ended(tick)):
        return False
    what = hangs.launcher_end(failed)
    incidents.close(tick, store.INCIDENT_STATE_FAILED, what)
    finish(tick, store.RUN_PHASE_FAILED, what)
    return True


def see_first_steps(tick: Tick) -> None:
    """Note from which step the ranks have continued, if a hang was aborted before: it tells how much was lost."""
    incident = incidents.open_one(tick)
    if incident is not None and incident.HasField("abort") and not tick.state.saves:
        first = min(rank.progress.step - rank.steps_done for rank in tick.ranks.values())
        with tick.edit_record() as record:
            record.resumed_step = max(-1, first - 1)


def _have_ended(tick: Tick) -> bool:
    return bool(tick.ranks) and all(rank.HasField("exit") for rank in tick.ranks.values())


def _present_cause(tick: Tick) -> Finding | None:
    """Return what explains that the run stands still now, if anything does."""
    view = detection.view_of(tick)
    found = (one for name in tick.state.detectors for one in detection.ask(tick, name, view) if one.stops_the_run)
    return next(found, None)


def _withdraw(tick: Tick, incident: store.Incident | None) -> None:
    """Watch on: the standstill may end by itself, or be judged again. So may a node be lost again."""
    if incident is not None and incident.verdict.kind == store.VERDICT_KIND_LOST_NODE:
        with incidents.edit(tick, incident) as edited:
            edited.ClearField("abort")
        incidents.close(tick, store.INCIDENT_STATE_RESOLVED, _NOT_LOST)
        tick.forget(incidents.reported_key(incident.verdict.kind, incident.verdict.culprits))
    elif incident is not None:
        is_news = tick.once("an abort was withdrawn")
        with incidents.edit(tick, incident) as edited:
            edited.state = store.INCIDENT_STATE_STANDSTILL
            edited.ClearField("abort")
            if is_news:
                edited.actions.add(unix_s=tick.now, what=_MOVED)
        with tick.edit_record() as record:
            record.open_incident, record.standstill_incident = "", incident.id
    _judge_again(tick)


def _judge_again(tick: Tick) -> None:
    has_trained = all(rank.steps_done for rank in tick.ranks.values())
    tick.enter(store.RUN_PHASE_RUNNING if has_trained else store.RUN_PHASE_STARTING)


def _send(tick: Tick, ranks: list[store.EndedRank]) -> None:
    def command(node: str) -> store.NodeCommand:
        return store.NodeCommand(end_ranks=store.EndRanks(ranks=[rank for rank in ranks if rank.node == node]))

    tick.send(sorted({rank.node for rank in ranks}), command)


def _lives(tick: Tick, asked: store.EndedRank) -> bool:
    rank = tick.ranks.get(asked.rank)
    return rank is not None and rank.pid == asked.pid and rank.life != store.LIFE_EXITED


def _has_moved(tick: Tick, asked: store.EndedRank) -> bool:
    return tick.ranks[asked.rank].stalled_s < asked.stalled_s
