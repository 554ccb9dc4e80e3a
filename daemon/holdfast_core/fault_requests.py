"""Faults that operators request: sent to a rank, answered, counted, and named in the incident that follows."""

from dataclasses import replace

from holdfast_core.detectors.numbers.silent_corruption import SilentCorruption
from holdfast_core.model import CoreState, FaultAnswered, Send, counted, places_of, ranks_of
from holdfast_core.naming import phase_name, run_phase_name
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault

_MOST_UNREPORTED = 64
"""Faults that wait for an incident's story, the newest: many faults lead to no incident."""

_SHOWN = 8
"""Faults that a run's status lists."""

_BIT_FLIP = "bit-flip"
"""The one fault that only a comparison with other ranks can show. The rank decides about it as far as it can."""

_PHASES = (store.RUN_PHASE_STARTING, store.RUN_PHASE_RUNNING)


def refusal(state: CoreState, fault: Fault) -> str:
    """Return why a fault is not injected now, or "" if it is."""
    if not state.spec.injection_allowed:
        return "this run allows no faults: start it with --allow-faults"
    if state.record.phase not in _PHASES:
        phase = run_phase_name(state.record.phase)
        return f"the run is {phase}, not running: try again when it is"
    if not _node_of(state, fault.rank):
        alive = sorted(number for number, rank in _ranks(state).items() if not rank.HasField("exit"))
        return f"there is no rank {fault.rank} that is alive: name one of {', '.join(map(str, alive)) or 'none'}"
    return state.detector(SilentCorruption).unseen(fault.rank) if fault.kind == _BIT_FLIP else ""


def serve(tick: Tick, fault: Fault) -> None:
    """Send a fault to the node that has its rank, once: a command that is lost does no harm."""
    reason = refusal(tick.state, fault)
    if reason:
        tick.actions.append(FaultAnswered(fault, reason))
    else:
        command = store.NodeCommand(generation=tick.record.generation, inject_fault=fault)
        tick.actions.append(Send(_node_of(tick.state, fault.rank), command))


def absorb(tick: Tick, event: store.Event) -> None:
    """Note whether a rank has accepted a fault, and answer the operator who requested it."""
    tick.state = replace(
        tick.state,
        unreported_faults=(*tick.state.unreported_faults, event)[-_MOST_UNREPORTED:],
        newest_faults=(*tick.state.newest_faults, event)[-_SHOWN:],
    )
    if event.HasField("fault_refused"):
        tick.actions.append(FaultAnswered(event.fault_refused.fault, event.fault_refused.reason))
    else:
        fault = event.fault_injected.fault
        totals = tick.state.totals
        tick.state = replace(tick.state, totals=replace(totals, faults=counted(totals.faults, fault.kind)))
        tick.actions.append(FaultAnswered(fault, waits_for=event.fault_injected.waits_for))


def add_to_story(tick: Tick, incident: store.Incident) -> None:
    """Begin an incident's story with the faults that were injected or refused before it in its generation."""
    for event in tick.state.unreported_faults:
        if event.generation == incident.generation:
            incident.actions.add(unix_s=event.unix_s, what=_story(event))
    tick.state = replace(tick.state, unreported_faults=())


def _story(event: store.Event) -> str:
    if event.HasField("fault_refused"):
        refused = event.fault_refused
        return f"{refused.fault.kind} was not injected into rank {refused.fault.rank}: {refused.reason}"
    injected = event.fault_injected
    fault = injected.fault
    if injected.waits_for:
        return f"{fault.kind} was armed in rank {fault.rank}: it waits for {injected.waits_for}"
    if fault.step < 0 and not fault.phase:
        return f"{fault.kind} was accepted by rank {fault.rank} in step {injected.step}"
    # A rank reports that it has accepted a fault. It reports no strike, because it may not live to do so.
    phase = f" or later, at the start of the phase {phase_name(fault.phase)}" if fault.phase else ""
    return f"{fault.kind} was armed in rank {fault.rank} for step {injected.step}{phase}"


def _ranks(state: CoreState) -> dict[int, store.RankState]:
    return ranks_of(state.nodes, state.record.generation)


def _node_of(state: CoreState, number: int) -> str:
    """Return the node on which a rank of this generation is alive, or "" if there is none."""
    alive = (name for name, rank in places_of(state, number) if not rank.HasField("exit"))
    return next((name for name in alive if name in state.record.nodes), "")
