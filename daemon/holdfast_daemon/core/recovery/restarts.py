"""Counts the restarts that brought no new step, and says why a run is given up."""

from itertools import takewhile

from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

_TRIED = (store.INCIDENT_STATE_OPEN, store.INCIDENT_STATE_FAILED, store.INCIDENT_STATE_RECOVERED)


def without_progress(record: store.CoordinatorState) -> int:
    """Return how many restarts in a row for certain signs have followed on one that brought no new step."""
    if record.newest_step > record.step_at_restart:
        return 0
    return record.restarts_without_progress + (not record.restart_is_uncertain)


def why_given_up(tick: Tick, limit: int) -> str:
    """Return the last line of a run that is not started again.

    If the same rank ended or hung at the same step each time, it says so: the data or the state of that step does it.
    """
    outcome = tick.record.outcome
    tried = [tick.state.incidents[name] for name in sorted(tick.state.incidents, reverse=True)]
    verdicts = [incident.verdict for incident in tried if incident.state in _TRIED]
    same = list(takewhile(lambda one: _place(one) == _place(verdicts[0]), verdicts))
    if len(same) > limit and same[0].culprits:
        step = "before the first step" if same[0].step < 0 else f"at step {same[0].step}"
        times = f"rank {same[0].culprits[0]} fails {step} each time, {len(same)} times in a row"
        return f"{times}, so its data or state there is the likely cause: {outcome}"
    return f"{limit} restarts in a row brought no new step: {outcome}"


def _place(verdict: store.Verdict) -> tuple[int, list[int], int]:
    return verdict.kind, list(verdict.culprits[:1]), verdict.step
