"""Folds an observation into the state: nodes, events, telemetry. Judges no rank."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby

from holdfast_core import evidence, fault_requests, incidents, live_requests, witnesses
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import checkpoint_commands, checkpoint_failures, checkpoint_reads, proven_steps
from holdfast_core.detectors.deaths.death import is_clean
from holdfast_core.diagnosis.devices.diagnosis import RecorderDumps
from holdfast_core.model import CheckpointCounted, Observation
from holdfast_core.recovery import hang_aborts, leaving, observed
from holdfast_core.step_numbers import count_step, merge, see_logged
from holdfast_core.tick import Tick
from holdfast_core.world import parts_of
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.recorder_pb2 import RecorderDump

PENDING_STEPS = 512
"""Steps that a node may be ahead before a step is counted without the summaries of the nodes that lag."""

UNREADABLE_KEPT = 256
"""Unreadable checkpoints that are remembered: those of the newest steps, because a start tries the newest first."""


def absorb(tick: Tick, observation: Observation) -> None:
    """Fold an observation into the state."""
    _nodes(tick, observation)
    for has_summary, events in groupby(observation.events, lambda event: event.HasField("step_summary")):
        if has_summary:
            _summaries(tick, events)
            continue
        for event in events:
            _event(tick, event)
    _evidence(tick, [event for event in observation.events if event.HasField("evidence_captured")])
    _progress(tick)
    _first_exit(tick)


def _nodes(tick: Tick, observation: Observation) -> None:
    ledger.see_clocks(tick, observation.nodes)
    generation = tick.record.generation
    nodes = dict(observation.nodes)
    if tick.observes:
        generation, nodes = observed.see_launches(tick, nodes)
    state, members = tick.state, tick.record.nodes
    tick.state = replace(
        tick.state,
        nodes=nodes,
        parts=parts_of(nodes, state.parts),
        heard_of={**state.heard_of, **_heard(tick, nodes)},
        missed_unix_s={name: state.missed_unix_s.get(name, tick.now) for name in members if name not in nodes},
    )
    ledger.open_account(tick)
    observed.follow(tick, generation)


def _heard(tick: Tick, nodes: Mapping[str, store.NodeState]) -> dict[str, store.NodeState]:
    """Return the states of the members that are to be remembered.

    An agent that has none of its ranks says nothing about them: what was heard before tells more.
    """
    known = tick.state.heard_of
    present = {name: nodes[name] for name in tick.record.nodes if name in nodes}
    if tick.observes:
        return present
    return {name: node for name, node in present.items() if node.generation >= known.get(name, node).generation}


def _event(tick: Tick, event: store.Event) -> None:
    match event.WhichOneof("kind"):
        case "checkpoint_committed":
            totals = tick.state.totals
            changed = replace(totals, checkpoints=totals.checkpoints + 1, last_checkpoint_unix_s=event.unix_s)
            tick.state = replace(tick.state, totals=changed)
            tick.actions.append(CheckpointCounted(event))
            checkpoint_failures.committed(tick, event.checkpoint_committed.step)
            checkpoint_commands.restart_timer(tick)
            checkpoint_commands.keep_if_wanted(tick, event.checkpoint_committed.step)
            proven_steps.see_committed(tick, event.checkpoint_committed.step)
        case "checkpoint_failed":
            checkpoint_failures.failed(tick, event)
        case "checkpoint_unreadable":
            _unreadable(tick, event.checkpoint_unreadable)
        case "snapshot_memory_refused":
            _memory_refused(tick, event.node, event.snapshot_memory_refused)
        case "command_refused":
            totals = tick.state.totals
            tick.state = replace(tick.state, totals=replace(totals, refused_commands=totals.refused_commands + 1))
        case "end_announced" | "launcher_end" | "witness_words":
            _told(tick, event)
        case "fault_injected" | "fault_refused":
            fault_requests.absorb(tick, event)
        case "stacks_taken" | "profile_taken":
            live_requests.absorb(tick, event)
        case "numbers_logged":
            _logged(tick, event)


def _memory_refused(tick: Tick, node: str, refused: store.SnapshotMemoryRefused) -> None:
    detail = store.CheckpointDetail(trouble=store.CHECKPOINT_TROUBLE_NO_MEMORY, node=node, memory=refused)
    if tick.once(f"memory {node}"):
        checkpoint_failures.note(tick, detail, tick.record.newest_step)


def _told(tick: Tick, event: store.Event) -> None:
    """Take in what a witness says, or what a node says about the launcher of an observed run."""
    if event.HasField("witness_words"):
        if not tick.observes and event.generation != tick.record.generation:
            return  # it is about ranks that are gone; launchers number their generations by themselves
        witnesses.hear(tick, event.witness_words)
        incident = witnesses.addressee(tick)
        if incident is not None:
            with incidents.edit(tick, incident) as edited:
                witnesses.add_to_story(tick, edited)
    elif not tick.observes:
        return
    elif event.HasField("launcher_end"):
        # Launchers end one after another. What is left of the run on other nodes may continue without this one.
        if observed.has_left(tick) or tick.state.saves:
            hang_aborts.see_launcher_end(tick, [event.node], event.launcher_end.code)
    elif tick.record.phase != store.RUN_PHASE_WAITING and event.end_announced.within_s > 0:
        # Before a world has begun, nothing is judged, and the launchers of other nodes may still wait for this one.
        leaving.ask(tick, event.end_announced.within_s)


def _unreadable(tick: Tick, unreadable: store.CheckpointUnreadable) -> None:
    if unreadable.step not in tick.record.unreadable_checkpoints:
        with tick.edit_record() as record:
            newest = sorted({*record.unreadable_checkpoints, unreadable.step})[-UNREADABLE_KEPT:]
            record.unreadable_checkpoints[:] = newest
    detail = store.CheckpointDetail(trouble=store.CHECKPOINT_TROUBLE_UNREADABLE, reason=unreadable.reason)
    checkpoint_failures.note(tick, detail, unreadable.step)


def _evidence(tick: Tick, events: Sequence[store.Event]) -> None:
    """Take in what nodes have gathered. Each event costs its own contents: what is copied is copied once a tick."""
    _stacks(tick, [event.evidence_captured for event in events])
    of_incident: dict[str, list[store.Event]] = {}
    for event in events:
        of_incident.setdefault(event.evidence_captured.incident, []).append(event)
    for identity, sent in of_incident.items():
        current = tick.state.incidents.get(identity)
        if current is None:
            continue
        captured = [event.evidence_captured for event in sent]
        if any(one.files or one.pending or one.stacks or one.places for one in captured):
            with incidents.edit(tick, current) as incident:
                incidents.name_files(incident, chain.from_iterable(one.files for one in captured))
                evidence.add(incident.verdict, *captured)
        if identity == tick.record.open_incident:
            names = tick.state.evidence_from.union(event.node for event in sent)
            tick.state = replace(tick.state, evidence_from=names)


def _stacks(tick: Tick, captured: Sequence[store.EvidenceCaptured]) -> None:
    """Keep stacks and recorders of ranks that hang. Those of an earlier suspicion are out of date, and are left out."""
    current = tick.state.suspicion
    stacks: dict[int, store.StackSummary] = {}
    recorders: dict[int, RecorderDump] = {}
    for one in captured:
        if not one.suspicion or (current is not None and current.id == one.suspicion):
            stacks.update((stack.rank, stack) for stack in one.stacks)
            # A rank may use two backends. Their recorders are never merged: the one that shows more calls is judged.
            shown = sorted(one.recorders, key=lambda recorder: len(recorder.dump.calls))
            recorders.update((recorder.rank, recorder.dump) for recorder in shown)
    if stacks:
        tick.state = replace(tick.state, stacks={**tick.state.stacks, **stacks})
    if recorders:
        known = tick.state.recorders
        tick.state = replace(tick.state, recorders=RecorderDumps({**known, **recorders}, known))


def _summaries(tick: Tick, events: Iterable[store.Event]) -> None:
    """Merge the nodes' summaries of each step; count a step once all nodes have sent theirs."""
    sent, pending = dict(tick.state.counted_steps), dict(tick.state.pending_steps)
    newest = -1
    for event in events:
        node, summary = event.node, event.step_summary
        if summary.generation != observed.own_generation(tick, node) or summary.step <= sent.get(node, -1):
            continue  # the summary is of an earlier generation, or was sent twice
        sent[node], newest = summary.step, max(newest, summary.step)
        summary = ledger.by_leaders_clock(tick, node, summary)
        known = pending.get(summary.step)
        pending[summary.step] = summary if known is None else merge(known, summary)
    tick.state = replace(tick.state, counted_steps=sent)
    # Summaries that never come, or are refused, must not make those of the other nodes wait forever.
    complete = max(min((sent.get(name, -1) for name in tick.record.nodes), default=-1), newest - PENDING_STEPS)
    tick.state = replace(tick.state, pending_steps={step: value for step, value in pending.items() if step > complete})
    for step in sorted(step for step in pending if step <= complete):
        count_step(tick, pending[step])


def _logged(tick: Tick, event: store.Event) -> None:
    if event.generation == observed.own_generation(tick, event.node):
        see_logged(tick, event.numbers_logged)


def _progress(tick: Tick) -> None:
    """Note the newest step that the run has completed: every rank is past it."""
    ranks = tick.ranks
    if len(ranks) == tick.world_size:
        reached = ranks.least_step - 1
        if reached > tick.record.newest_step:
            with tick.edit_record() as record:
                record.newest_step = reached
    if ranks.untrained < len(ranks):
        checkpoint_reads.see_training(tick)
    tick.state = replace(tick.state, deadlines=tick.state.deadlines.observe_start(ranks.longest_start_s))


def _first_exit(tick: Tick) -> None:
    exits = [rank for rank in tick.ranks.ended.values() if not is_clean(rank.exit)]
    if exits and not tick.state.first_exit_unix_s:
        tick.state = replace(tick.state, first_exit_unix_s=tick.now)
