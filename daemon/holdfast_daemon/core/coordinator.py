"""The core's one function: what was seen goes in, what is to be done comes out."""

import math

from holdfast_daemon.core import absorb, lifecycle
from holdfast_daemon.core.deadlines import Deadlines
from holdfast_daemon.core.model import (
    Action,
    CheckpointOrdered,
    CheckpointRequest,
    CoreState,
    Observation,
    Request,
    StopRequest,
)
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store

CHECKPOINT_LEAD_S = 1.0
"""An ordered checkpoint is set for a step that no rank will have finished when the order arrives."""


def begin(
    spec: store.RunSpec,
    record: store.CoordinatorState | None = None,
    incidents: dict[str, store.Incident] | None = None,
) -> CoreState:
    """Return the state of a leader that takes over ``record``, or of a new run."""
    if record is None:
        record = store.CoordinatorState(run=spec.run, phase=store.RUN_PHASE_WAITING, newest_step=-1, resumed_step=-1)
    return CoreState(spec=spec, record=record, deadlines=Deadlines.for_preset(spec.preset), incidents=incidents or {})


def step(state: CoreState, now: float, observation: Observation) -> tuple[CoreState, list[Action]]:
    """Return the next state and what to do.

    ``now`` is Unix time by a clock that never jumps. Nothing else enters: the same calls give the same answers.
    """
    turn = Turn(state, now)
    absorb.absorb(turn, observation)
    for request in observation.requests:
        _serve(turn, request)
    phase = None
    while phase != turn.record.phase:  # an order that needs no answer from outside is given in the same turn
        phase = turn.record.phase
        lifecycle.HANDLERS[phase](turn)
    return turn.state, turn.actions


def _serve(turn: Turn, request: Request) -> None:
    match request:
        case StopRequest():
            if turn.record.phase not in (store.RUN_PHASE_FINISHED, store.RUN_PHASE_FAILED):
                lifecycle.finish(turn, store.RUN_PHASE_FAILED, "stopped by an operator")
        case CheckpointRequest():
            _order_checkpoint(turn)


def _order_checkpoint(turn: Turn) -> None:
    if turn.record.phase != store.RUN_PHASE_RUNNING:
        phase = store.RunPhase.Name(turn.record.phase).removeprefix("RUN_PHASE_").lower()
        turn.actions.append(CheckpointOrdered(-1, f"the run is {phase}, not running: try again when it is"))
        return
    if not turn.ranks:
        turn.actions.append(CheckpointOrdered(-1, "no node of the run is heard of: try again when one is"))
        return
    newest = max(rank.progress.step for rank in turn.ranks.values())
    step_s = max(turn.state.telemetry.step_s, 1e-3)
    target = newest + 1 + math.ceil(CHECKPOINT_LEAD_S / step_s)
    turn.send(turn.record.nodes, lambda _: store.NodeCommand(take_checkpoint=store.TakeCheckpoint(step=target)))
    turn.actions.append(CheckpointOrdered(target))
