"""What needs a person now, and whether it is bad: the one rule for the console, the control API and terminals.

An incident that stopped nothing asks for attention for some time. A loss that is not finite does so, and is bad, until
it is finite again or an operator has acknowledged its incident: all that the run computes meanwhile may be lost.
"""

from holdfast_core.model import CoreState, ranks_of
from holdfast_core.naming import incident_number
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

RECENT_S = 600.0
"""Time for which an incident that stopped nothing still asks for attention."""
_PASSING = (store.INCIDENT_STATE_NOTED, store.INCIDENT_STATE_FAILED)


def open_incident(state: CoreState) -> store.Incident | None:
    """Return the incident that is not over: the one that is acted on, else the standstill; None if all is well."""
    names = (state.record.open_incident, state.record.standstill_incident)
    return next((state.incidents[name] for name in names if name in state.incidents), None)


def is_training(state: CoreState) -> bool:
    """Return whether ranks do steps now: the run has not ended, a rank is alive, and nothing stands still."""
    if state.record.phase != store.RUN_PHASE_RUNNING or open_incident(state) is not None:
        return False
    ranks = ranks_of(state.members, state.record.generation).values()
    return any(rank.life != store.LIFE_EXITED for rank in ranks)


def tokens_per_s(state: CoreState) -> float | None:
    """Return the throughput of the newest steps; None while no steps are done, as it says nothing about that time."""
    return state.telemetry.tokens_per_s if is_training(state) or state.record.phase in ENDED else None


def bad_loss_incident(state: CoreState) -> store.Incident | None:
    """Return the incident of the losses in a row that are not finite now; None: none is, or this leader knows of none.

    Its step is after the newest finite loss, so it is not about an earlier episode: people go back to a checkpoint from
    before that step. It is not after the first loss of the row: the origin, or the same row after a restart, may have
    been reported with a later step. It may be before that loss, at a step that the loss scaler skipped.
    """
    counts = state.record.loss_counts
    if not counts.HasField("nonfinite_since"):
        return None
    after = counts.nonfinite_since - 1
    if counts.HasField("finite_step"):  # a restart may have undone that step
        after = min(after, counts.finite_step)
    known = (
        incident
        for incident in state.incidents.values()
        if incident.loss_tier == store.LOSS_TIER_NON_FINITE and after < incident.verdict.step <= counts.nonfinite_since
    )
    return max(known, key=lambda incident: incident.detected_unix_s, default=None)


def is_loss_acknowledged(state: CoreState) -> bool:
    """Return whether an operator knows of the losses in a row that are not finite now."""
    incident = bad_loss_incident(state)
    return incident is not None and incident.acknowledged_unix_s > 0.0


def can_be_acknowledged(state: CoreState, incident: store.Incident) -> bool:
    """Return whether it changes anything that an operator acknowledges an incident."""
    return incident.state in _PASSING and not incident.acknowledged_unix_s and state.record.phase not in ENDED


def is_bad(state: CoreState) -> bool:
    """Return whether a run that has not ended does not train, or trains what is worth nothing and nobody knows."""
    is_worthless = state.record.loss_counts.HasField("nonfinite_since") and not is_loss_acknowledged(state)
    return open_incident(state) is not None or is_worthless


def explains_the_end(newest: store.Incident, phase: "store.RunPhase") -> bool:
    """Return whether the newest incident of a run that has ended is why it failed."""
    return phase == store.RUN_PHASE_FAILED and newest.state == store.INCIDENT_STATE_FAILED


def urgent_incident(state: CoreState, now: float) -> store.Incident | None:
    """Return the incident that a person should see first; None: none needs attention."""
    present = open_incident(state)
    if present is not None:
        return present
    if state.record.phase in ENDED:
        newest = state.incidents[max(state.incidents, key=incident_number)] if state.incidents else store.Incident()
        return newest if explains_the_end(newest, state.record.phase) else None
    bad_loss = bad_loss_incident(state)
    if bad_loss is not None and not bad_loss.acknowledged_unix_s:
        return bad_loss
    recent = (
        incident
        for incident in state.incidents.values()
        if incident.state in _PASSING and not incident.acknowledged_unix_s and now - incident.detected_unix_s < RECENT_S
    )
    return max(recent, key=lambda incident: incident.detected_unix_s, default=None)
