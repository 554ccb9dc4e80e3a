"""The end of a run, however it came."""

from holdfast_daemon.core import standstill
from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

FINISHED = "finished"

ENDED = (store.RUN_PHASE_FINISHED, store.RUN_PHASE_FAILED)

RESEND_S = 2.0
"""Commands are idempotent and repeated until their effect is seen: a store that lost them costs so much."""

_LEAST_PATIENCE_S = 0.1


def finish(tick: Tick, phase: "store.RunPhase", outcome: str) -> None:
    """End the run for good."""
    standstill.drop(tick, f"the run has ended: {outcome}")
    with tick.edit_record() as record:
        record.outcome = outcome
    tick.enter(phase)
    _send_finish(tick)


def _send_finish(tick: Tick) -> None:
    record = tick.record
    message = store.FinishRun(outcome=record.outcome, succeeded=record.phase == store.RUN_PHASE_FINISHED)
    if record.leave_by_unix_s:
        message.patience_s = max(_LEAST_PATIENCE_S, record.leave_by_unix_s - tick.now)
    tick.send(sorted(tick.state.nodes), lambda _: store.NodeCommand(finish=message))


def ended(tick: Tick) -> None:
    """See every agent leave."""
    if tick.state.nodes and tick.now - tick.state.sent_unix_s > RESEND_S:
        _send_finish(tick)
