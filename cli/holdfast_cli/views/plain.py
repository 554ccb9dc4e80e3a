"""A run's status as lines, for logs and pipes: only what has changed."""

from collections.abc import Iterator
from itertools import chain

from holdfast_cli.views.conditions import Condition, condition, describe
from holdfast_cli.views.phrases import (
    fault_line,
    kept_line,
    own_time_line,
    phase_word,
    progress_line,
    recorder_line,
    refusal_line,
)
from holdfast_core.texts.incident_lines import incident_line, outcome_line
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FAILED, RUN_PHASE_RUNNING, Incident

HEARTBEAT_S = 10.0
_ODD = (Condition.DEAD, Condition.STOPPED, Condition.STALLED)


def changes(previous: RunStatus | None, current: RunStatus, total_steps: int | None) -> Iterator[str]:
    """Yield a line for everything that is new in ``current``: causes first, then what follows from them."""
    before = previous or RunStatus()
    causes, effects = _causes(before, current), _progress(before, current, total_steps)
    # What has happened explains why a run restarts or ends. A run that trains again explains why an incident is over.
    is_effect_first = previous is None or current.phase == RUN_PHASE_RUNNING
    yield from chain(effects, causes) if is_effect_first else chain(causes, effects)
    if current.newest_checkpoint > before.newest_checkpoint and previous is not None:
        yield f"checkpoint of step {current.newest_checkpoint} committed"


def _progress(before: RunStatus, current: RunStatus, total_steps: int | None) -> Iterator[str]:
    if (before.phase, before.generation) != (current.phase, current.generation):
        outcome = f": {current.outcome}" if current.outcome else ""
        yield f"{current.run} {phase_word(current)}, generation {current.generation}{outcome}"
        if current.newest_step >= 0:
            yield f"{progress_line(current, total_steps)} · {kept_line(current)}"
    recorders = recorder_line(current)
    if recorders and recorders != recorder_line(before):
        yield recorders
    own_time = own_time_line(current)
    # Ranks say it one after another: the line waits until all of them have.
    if own_time != own_time_line(before) and own_time and all(rank.own_time_source for rank in current.ranks):
        yield own_time
    if current.replicas_note and current.replicas_note != before.replicas_note:
        yield current.replicas_note


def _causes(before: RunStatus, current: RunStatus) -> Iterator[str]:
    yield from (fault_line(one) for one in current.faults if one not in before.faults)
    refused = (one for one in current.faults_refused if one not in before.faults_refused)
    yield from (f"fault refused: {refusal_line(one)}" for one in refused)
    yield from _odd_ranks(before, current)
    if current.HasField("newest_incident"):
        yield from _incident_changes(before.newest_incident, current.newest_incident)


def _odd_ranks(before: RunStatus, current: RunStatus) -> Iterator[str]:
    if current.phase == RUN_PHASE_FAILED:
        return  # Holdfast has killed those that were left: their ends are no causes
    known = {rank.rank: condition(rank) for rank in before.ranks}
    for rank in current.ranks:
        judged = condition(rank)
        if judged in _ODD and known.get(rank.rank) is not judged:
            yield f"rank {rank.rank} {describe(rank, judged)}"


def _incident_changes(before: Incident, current: Incident) -> Iterator[str]:
    same = before.id == current.id
    if not same or before.state != current.state:
        yield f"incident {current.id}: {incident_line(current)}"
    for action in current.actions[len(before.actions) if same else 0 :]:
        yield f"incident {current.id}: {action.unix_s - current.detected_unix_s:+.1f} s {action.what}"
    if current.recovered_unix_s and not (same and before.recovered_unix_s):
        yield f"incident {current.id}: {outcome_line(current)}"
