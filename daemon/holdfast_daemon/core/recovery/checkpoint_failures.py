"""Checkpoints that fail one after the other are one incident: a store that is away for hours is told once.

So are those that are committed and then cannot be copied to the secondary store: it takes two commits in a row, with no
failure between them, to end the story.
"""

from collections.abc import Iterable

from holdfast_daemon.core import incidents
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store

_LINES_AT_MOST = 50
"""In the story of one outage."""


def failed(turn: Turn, event: store.Event) -> None:
    """A node could not write its part of a checkpoint, or not commit it."""
    failure = event.checkpoint_failed
    message = f"checkpoint of step {failure.step} failed: {failure.reason}"
    incident = _present(turn)
    if not turn.record.HasField("failed_checkpoint") or failure.step > turn.record.failed_checkpoint:
        turn.record_update(failed_checkpoint=failure.step)
    if incident is None:
        incident = note(turn, message, failure.step)
    else:
        _tell(turn, incident, f"node {event.node}: {message}")
    _keep(turn, store.CheckpointOutage(incident=incident.id))


def committed(turn: Turn, step: int) -> None:
    """A checkpoint is there again: what fails after the next one is another story."""
    incident, outage = _present(turn), turn.record.checkpoint_outage
    if incident is None:
        return
    if not outage.HasField("committed_step"):
        _tell(turn, incident, f"the checkpoint of step {step} is committed")
        _keep(turn, store.CheckpointOutage(incident=incident.id, committed_step=step))
    elif step != outage.committed_step:  # two nodes may find the same one complete
        _keep(turn, store.CheckpointOutage())


def passed_over(turn: Turn, steps: Iterable[int], instead: str) -> None:
    """Say in the incident of each damaged checkpoint what the run starts from instead of it.

    A shard that cannot be read has an incident already; of a manifest only the nodes' state says so.
    """
    for step in sorted(steps):
        incident = _of_step(turn, step)
        if incident is None:
            message = f"the checkpoint of step {step} is damaged: `holdfast checkpoint list` names the file"
            incident = note(turn, message, step)
        _tell(turn, incident, instead)


def _of_step(turn: Turn, step: int) -> store.Incident | None:
    return next(
        (
            incident
            for incident in turn.state.incidents.values()
            if incident.verdict.kind == store.VERDICT_KIND_CHECKPOINT_FAILED and incident.verdict.step == step
        ),
        None,
    )


def note(turn: Turn, message: str, step: int) -> store.Incident:
    """Keep what is wrong with checkpoints as an incident of its own."""
    verdict = store.Verdict(kind=store.VERDICT_KIND_CHECKPOINT_FAILED, message=message, step=step, confidence_ratio=1.0)
    return incidents.note_incident(turn, verdict)


def _present(turn: Turn) -> store.Incident | None:
    return turn.state.incidents.get(turn.record.checkpoint_outage.incident)


def _tell(turn: Turn, incident: store.Incident, what: str) -> None:
    if len(incident.actions) < _LINES_AT_MOST:
        incidents.tell(turn, incident, what)


def _keep(turn: Turn, outage: store.CheckpointOutage) -> None:
    record = store.CoordinatorState()
    record.CopyFrom(turn.record)
    record.checkpoint_outage.CopyFrom(outage)
    turn.update(record=record)
