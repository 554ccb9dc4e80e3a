"""The core's one function: what was seen goes in, what is to be done comes out."""

from contextlib import nullcontext

from holdfast_daemon.core import absorb, injection
from holdfast_daemon.core.deadlines import Deadlines
from holdfast_daemon.core.model import (
    Action,
    CheckpointRequest,
    CoreState,
    FaultRequest,
    Observation,
    Request,
    StopRequest,
)
from holdfast_daemon.core.recovery import checkpoint_commands, leaving, lifecycle
from holdfast_daemon.core.recovery.ending import ENDED, finish
from holdfast_daemon.core.turn import Timed, Turn
from holdfast_proto.v1 import store_pb2 as store


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

    ``now`` is Unix time by a clock that never jumps. Nothing else enters: the same calls give the same answers.
    ``timed`` is for the caller, who may want to know how long each detector takes.
    """
    turn = Turn(state, now, timed)
    absorb.absorb(turn, observation)
    for request in observation.requests:
        _serve(turn, request)
    leaving.absorb_wishes(turn)
    phase = None
    while phase != turn.record.phase:  # an order that needs no answer from outside is given in the same turn
        phase = turn.record.phase
        lifecycle.HANDLERS[phase](turn)
    return turn.state, turn.actions


def _serve(turn: Turn, request: Request) -> None:
    match request:
        case StopRequest(grace_s=grace_s) if grace_s > 0:
            leaving.ask(turn, grace_s)
        case StopRequest():
            if turn.record.phase not in ENDED:
                finish(turn, store.RUN_PHASE_FAILED, "stopped by an operator")
        case CheckpointRequest():
            checkpoint_commands.serve(turn)
        case FaultRequest(fault=fault):
            injection.serve(turn, fault)
