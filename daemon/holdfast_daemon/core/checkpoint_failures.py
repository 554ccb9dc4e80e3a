"""Checkpoints that fail one after the other are one incident: a store that is away for hours is told once.

So are those that are committed and then cannot be copied to the secondary store: it takes two commits in a row, with no
failure between them, to end the story.
"""

from holdfast_daemon.core import incidents
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store

_LINES_AT_MOST = 50
"""In the story of one outage."""
_COMMITTED = " is committed"


def failed(turn: Turn, event: store.Event) -> None:
    """A node could not write its part of a checkpoint, or not commit it."""
    failure = event.checkpoint_failed
    message = f"checkpoint of step {failure.step} failed: {failure.reason}"
    incident = _present(turn)
    if incident is None:
        turn.record_update(failing_checkpoints=note(turn, message, failure.step).id)
    elif len(incident.actions) < _LINES_AT_MOST:
        incidents.tell(turn, incident, f"node {event.node}: {message}")


def committed(turn: Turn, step: int) -> None:
    """A checkpoint is there again: what fails after the next one is another story."""
    incident = _present(turn)
    if incident is None:
        return
    told = f"the checkpoint of step {step}{_COMMITTED}"
    newest = incident.actions[-1].what if incident.actions else ""
    if newest == told:
        return  # two nodes may find it complete
    if newest.endswith(_COMMITTED) or len(incident.actions) >= _LINES_AT_MOST:
        turn.record_update(failing_checkpoints="")
    else:
        incidents.tell(turn, incident, told)


def note(turn: Turn, message: str, step: int) -> store.Incident:
    """Keep what is wrong with checkpoints as an incident of its own."""
    verdict = store.Verdict(kind=store.VERDICT_KIND_CHECKPOINT_FAILED, message=message, step=step, confidence_ratio=1.0)
    return incidents.note_incident(turn, verdict)


def _present(turn: Turn) -> store.Incident | None:
    return turn.state.incidents.get(turn.record.failing_checkpoints)
