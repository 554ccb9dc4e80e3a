"""Checkpoints that fail one after another are one incident: a store that is unreachable for hours is reported once.

The incident ends after two commits in a row without a failure between them. One commit is not enough, because a
checkpoint may be committed and its copy to the secondary store fail, each time.
"""

from collections.abc import Iterable

from holdfast_core import incidents
from holdfast_core.texts.render import render, write
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

_LINES_AT_MOST = 50
"""Most lines in the story of one outage."""


def failed(tick: Tick, event: store.Event) -> None:
    """Note that a node could not write its part of a checkpoint, or could not commit it."""
    failure = event.checkpoint_failed
    detail = store.CheckpointDetail(trouble=store.CHECKPOINT_TROUBLE_FAILED, reason=failure.reason, node=event.node)
    incident = _present(tick)
    if not tick.record.HasField("failed_checkpoint") or failure.step > tick.record.failed_checkpoint:
        with tick.edit_record() as record:
            record.failed_checkpoint = failure.step
    if tick.record.resize.HasField("step") and tick.record.resize.step == failure.step:
        with tick.edit_record() as record:
            record.resize.failed = True
    if incident is None:
        incident = note(tick, detail, failure.step)
    else:
        _add_line(tick, incident, f"node {event.node}: {render(_verdict(detail, failure.step))}")
    _keep(tick, store.CheckpointOutage(incident=incident.id))


def committed(tick: Tick, step: int) -> None:
    """Note a commit: after the second in a row, the next failure is another incident."""
    incident, outage = _present(tick), tick.record.checkpoint_outage
    if incident is None:
        return
    if not outage.HasField("committed_step"):
        _add_line(tick, incident, f"the checkpoint of step {step} is committed")
        _keep(tick, store.CheckpointOutage(incident=incident.id, committed_step=step))
    elif step != outage.committed_step:  # two nodes may find the same one complete
        _keep(tick, store.CheckpointOutage())


def passed_over(tick: Tick, steps: Iterable[int], instead: str) -> None:
    """Add to the incident of each damaged checkpoint what the run starts from instead of it.

    A shard that cannot be read has an incident already. A manifest that cannot be read has none yet, because only the
    state of the nodes shows it.
    """
    for step in sorted(steps):
        incident = _of_step(tick, step)
        if incident is None:
            incident = note(tick, store.CheckpointDetail(trouble=store.CHECKPOINT_TROUBLE_DAMAGED), step)
        _add_line(tick, incident, instead)


def _of_step(tick: Tick, step: int) -> store.Incident | None:
    return next(
        (
            incident
            for incident in tick.state.incidents.values()
            if incident.verdict.kind == store.VERDICT_KIND_CHECKPOINT_FAILED and incident.verdict.step == step
        ),
        None,
    )


def note(tick: Tick, detail: store.CheckpointDetail, step: int) -> store.Incident:
    """Keep what is wrong with a checkpoint as a new incident."""
    verdict = _verdict(detail, step)
    write(verdict)
    return incidents.note_incident(tick, verdict)


def _verdict(detail: store.CheckpointDetail, step: int) -> store.Verdict:
    return store.Verdict(kind=store.VERDICT_KIND_CHECKPOINT_FAILED, step=step, confidence_ratio=1.0, checkpoint=detail)


def _present(tick: Tick) -> store.Incident | None:
    return tick.state.incidents.get(tick.record.checkpoint_outage.incident)


def _add_line(tick: Tick, incident: store.Incident, what: str) -> None:
    if len(incident.actions) < _LINES_AT_MOST:
        incidents.add_line(tick, incident, what)


def _keep(tick: Tick, outage: store.CheckpointOutage) -> None:
    with tick.edit_record() as record:
        record.checkpoint_outage.CopyFrom(outage)
