"""The core's one function: an observation goes in, actions come out."""

from contextlib import nullcontext
from dataclasses import replace

from holdfast_core import absorb, fault_requests, incidents, live_requests
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import checkpoint_commands
from holdfast_core.deadlines import Deadlines
from holdfast_core.model import (
    AcknowledgeRequest,
    Action,
    CheckpointRequest,
    CoreState,
    FaultRequest,
    LauncherEnded,
    Observation,
    ProfileRequest,
    ReleaseRequest,
    Request,
    StacksRequest,
    StopRequest,
)
from holdfast_core.naming import STOPPED_BY_OPERATOR
from holdfast_core.nodes import quarantine
from holdfast_core.recovery import hang_aborts, leaving, lifecycle, observed
from holdfast_core.recovery.ending import finish
from holdfast_core.tick import Tick, Timed
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED


def begin(
    spec: store.RunSpec,
    record: store.CoordinatorState | None = None,
    incidents: dict[str, store.Incident] | None = None,
) -> CoreState:
    """Return the state of a leader that takes over ``record``, or of a new run."""
    if record is None:
        record = store.CoordinatorState(run=spec.run, phase=store.RUN_PHASE_WAITING, newest_step=-1, resumed_step=-1)
    return CoreState(spec=spec, record=record, deadlines=Deadlines.for_preset(spec.preset), incidents=incidents or {})


def step(
    state: CoreState, now: float, observation: Observation, timed: Timed = nullcontext
) -> tuple[CoreState, list[Action]]:
    """Return the next state and what to do.

    ``now`` is Unix time by a clock that never jumps. Nothing else enters, so that the same calls always give the same
    answers: recordings can be replayed, and a tick that raised can be tried again. ``timed`` lets the caller time each
    detector.
    """
    tick = Tick(state, now, timed)
    absorb.absorb(tick, observation)
    quarantine.judge(tick)
    ledger.watch(tick)
    for request in observation.requests:
        _serve(tick, request)
    if tick.state.live_requests:
        live_requests.follow(tick)
    leaving.follow_nodes(tick)
    if tick.state.left_down_by:
        tick.state = replace(tick.state, left_down_by=frozenset())
    phase = None
    # One tick may pass through several phases: a phase that need not wait for an answer from outside ends immediately.
    while phase != tick.record.phase:
        phase = tick.record.phase
        lifecycle.HANDLERS[phase](tick)
    return tick.state, observed.in_own_numbers(tick) if tick.observes else tick.actions


def _serve(tick: Tick, request: Request) -> None:
    match request:
        case StopRequest(grace_s=grace_s) if grace_s > 0:
            leaving.ask(tick, grace_s)
        case StopRequest():
            if tick.record.phase not in ENDED:
                incidents.close(tick, store.INCIDENT_STATE_FAILED, STOPPED_BY_OPERATOR)
                finish(tick, store.RUN_PHASE_FAILED, STOPPED_BY_OPERATOR)
        case CheckpointRequest():
            checkpoint_commands.serve(tick)
        case FaultRequest(fault=fault):
            fault_requests.serve(tick, fault)
        case StacksRequest():
            live_requests.serve_stacks(tick, request)
        case ProfileRequest():
            live_requests.serve_profile(tick, request)
        case LauncherEnded(code=code):
            hang_aborts.see_launcher_end(tick, tick.record.nodes, code)
        case AcknowledgeRequest(incident=identity):
            incidents.acknowledge(tick, identity)
        case ReleaseRequest(node=name):
            quarantine.release(tick, name)
