"""The end of a run, however it came."""

from holdfast_daemon.core import standstill
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store

FINISHED = "finished"

ENDED = (store.RUN_PHASE_FINISHED, store.RUN_PHASE_FAILED)

RESEND_S = 2.0
"""Commands are idempotent and repeated until their effect is seen: a store that lost them costs so much."""

_LEAST_PATIENCE_S = 0.1


def finish(turn: Turn, phase: "store.RunPhase", outcome: str) -> None:
    """End the run for good."""
    standstill.drop(turn, f"the run has ended: {outcome}")
    turn.enter(phase, outcome=outcome)
    _send_finish(turn)


def _send_finish(turn: Turn) -> None:
    record = turn.record
    order = store.FinishRun(outcome=record.outcome, succeeded=record.phase == store.RUN_PHASE_FINISHED)
    if record.leave_by_unix_s:
        order.patience_s = max(_LEAST_PATIENCE_S, record.leave_by_unix_s - turn.now)
    turn.send(sorted(turn.state.nodes), lambda _: store.NodeCommand(finish=order))


def ended(turn: Turn) -> None:
    """See every agent leave."""
    if turn.state.nodes and turn.now - turn.state.sent_unix_s > RESEND_S:
        _send_finish(turn)
