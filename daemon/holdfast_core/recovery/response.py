"""Handles findings: each gets an incident and evidence; a run that stands still for long enough also gets a restart."""

from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import checkpoint_commands
from holdfast_core.detection import view_of
from holdfast_core.detectors.framework import Finding
from holdfast_core.nodes import quarantine
from holdfast_core.recovery import standstills, suspicion
from holdfast_core.recovery.ending import finish
from holdfast_core.recovery.evidence_ranks import chosen_ranks, nodes_to_ask
from holdfast_core.recovery.restart_patience import Sign, uncertain_restarts
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

_STACKS_OF_ALL = 2


def respond(tick: Tick, finding: Finding) -> None:
    """Handle a finding in the state of the ranks. What stops a run is found again in every tick, until it moves."""
    verdict = finding.verdict
    if verdict.kind == store.VERDICT_KIND_BAD_CONFIGURATION:
        incidents.note_incident(tick, verdict, last_progress_unix_s=finding.last_progress_unix_s)
        finish(tick, store.RUN_PHASE_FAILED, verdict.message)
    elif standstills.is_one(finding):
        _stand_still(tick, finding)
    elif (reported := standstills.explaining(tick, verdict)) is not None:
        _give_up_waiting(tick, finding, reported)
    elif tick.state.spec.mode == store.MODE_ACT and finding.stops_the_run:
        standstills.drop(tick, f"another verdict explains it: {verdict.message}")
        with tick.edit_record() as record:
            record.restart_is_uncertain = False
        _recover(tick, finding, None)
    elif tick.observes and tick.state.saves and finding.stops_the_run:
        if tick.once(incidents.reported_key(verdict.kind, verdict.culprits)):
            standstills.drop(tick, f"another verdict explains it: {verdict.message}")
            _recover(tick, finding, None)
    else:
        if finding.stops_the_run:
            tick.state = replace(tick.state, left_down_by=tick.state.left_down_by | {verdict.kind})
            ledger.note_verdict(tick, finding.last_progress_unix_s)
        if tick.once(f"{incidents.reported_key(verdict.kind, verdict.culprits)}{verdict.step}"):
            note(tick, finding)


def note(tick: Tick, finding: Finding) -> store.Incident:
    """Keep a verdict that needs no restart, or that the mode allows none for, and gather its evidence.

    Return the incident as it was at first.
    """
    incident = incidents.note_incident(tick, finding.verdict, last_progress_unix_s=finding.last_progress_unix_s)
    quarantine.see_incident(tick, incident)
    _gather(tick, incident, finding)
    if finding.proven_step is not None:
        checkpoint_commands.keep_newest_before(tick, finding.proven_step, incident)
    return incident


def _stand_still(tick: Tick, finding: Finding) -> None:
    """Report a standstill, or restart or abort the run if its signs have lasted for long enough."""
    judged = standstills.judge(tick, finding)
    if not judged.is_due:
        incident = standstills.report(tick, finding)
        if incident is not None:
            _gather(tick, incident, finding)
            ledger.note_standstill(tick, finding.last_progress_unix_s)
        return
    if tick.observes:  # counted when the ranks are ended
        _recover(tick, finding, standstills.take_over(tick, finding.verdict))
        incidents.add_line_to_open(tick, f"abort: {judged.reason}")
        return
    is_uncertain = judged.sign >= Sign.LIKELY
    repeats = uncertain_restarts(tick.record) + 1 if is_uncertain else tick.record.uncertain_restarts
    with tick.edit_record() as record:
        record.restart_is_uncertain = is_uncertain
        record.uncertain_restarts = repeats
    _recover(tick, finding, standstills.take_over(tick, finding.verdict))
    incidents.add_line_to_open(tick, f"restart: {judged.reason}")


def _give_up_waiting(tick: Tick, finding: Finding, reported: store.Incident) -> None:
    """Handle the ends of ranks that waited for the culprits of a standstill: these stay the culprits."""
    if tick.once(f"{reported.id} has consequences"):
        incidents.add_line(tick, reported, f"consequence: {finding.verdict.message}")
    if tick.state.spec.mode != store.MODE_ACT:
        tick.state = replace(tick.state, left_down_by=tick.state.left_down_by | {reported.verdict.kind})
        ledger.note_verdict(tick, reported.last_progress_unix_s)
        return
    with tick.edit_record() as record:
        record.restart_is_uncertain = False
    verdict = store.Verdict()
    verdict.CopyFrom(reported.verdict)
    cause = Finding(verdict=verdict, last_progress_unix_s=reported.last_progress_unix_s)
    _recover(tick, cause, standstills.take_over(tick, verdict))


def _recover(tick: Tick, finding: Finding, reported: store.Incident | None) -> None:
    """Begin a restart or an abort, or wait for that of a launcher.

    ``reported``: the incident of the standstill that it ends, if it was reported.
    """
    since = tick.now if finding.last_progress_unix_s is None else finding.last_progress_unix_s
    if reported is None:
        incident = incidents.open_incident(tick, finding.verdict, last_progress_unix_s=since)
    else:
        incident = incidents.reopen(tick, reported, finding.verdict)
    ledger.note_verdict(tick, since)
    tick.state = replace(tick.state, evidence_from=frozenset())
    tick.enter(store.RUN_PHASE_GATHERING)
    _gather(tick, incident, finding)


def _gather(tick: Tick, incident: store.Incident, finding: Finding) -> None:
    """Gather evidence: for a hang, also stacks of the culprit and of one rank that waits for it.

    In a large run only some ranks have their files written, and only their nodes are asked.

    After a death no stacks are taken: that takes time, and the other ranks are about to end.
    """
    verdict = finding.verdict
    waiters = [edge.waiter for edge in verdict.waits[:1]]
    message = store.GatherEvidence(incident=incident.id, flight_recorder=finding.stands_still)
    if finding.stands_still:
        message.stack_ranks.extend([*verdict.culprits[:1], *waiters] or _some(tick, verdict))
        message.suspicion = suspicion.confirm(tick)
    elif verdict.kind == store.VERDICT_KIND_STRAGGLER:
        message.stack_ranks.extend(verdict.culprits[:1])
    view = view_of(tick)
    message.file_ranks.extend(chosen_ranks(verdict, view, message.stack_ranks))
    asked = nodes_to_ask(tick.record.nodes, view, message.file_ranks, recorders=message.flight_recorder)
    tick.state = replace(tick.state, evidence_asked=frozenset(asked))
    tick.send(asked, lambda _: store.NodeCommand(gather_evidence=message))


def _some(tick: Tick, verdict: store.Verdict) -> list[int]:
    """Return the first ranks of a standstill without a culprit: their stacks show what all ranks do."""
    return sorted(tick.ranks)[:_STACKS_OF_ALL] if verdict.kind == store.VERDICT_KIND_STANDSTILL else []
