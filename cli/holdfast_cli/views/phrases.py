"""Enum values, numbers and incidents as people read them."""

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from holdfast_proto.message_json import enum_word
from holdfast_proto.v1.common_pb2 import Phase
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import FaultInjected, FaultRefused, Incident, IncidentState, VerdictKind


def enum_phrase(kind: EnumTypeWrapper, value: int) -> str:
    """Return ``VERDICT_KIND_HUNG_COLLECTIVE`` as ``hung collective``, and an unknown number as itself."""
    return enum_word(kind, value).replace("_", " ")


def progress_line(status: RunStatus, total_steps: int | None) -> str:
    """Return step, loss and throughput, as far as they are known."""
    parts = [_step(status.newest_step, total_steps)]
    if status.HasField("loss"):
        parts.append(f"loss {status.loss:.4f}")
    if status.HasField("validation_loss"):
        parts.append(f"validation loss {status.validation_loss:.4f}")
    if status.HasField("tokens_per_s"):
        parts.append(f"{status.tokens_per_s:,.0f} tokens/s")
    return " · ".join(parts)


def kept_line(status: RunStatus) -> str:
    """Return what is saved and what has happened, in numbers."""
    parts = [
        f"snapshot {_saved(status.newest_snapshot)}",
        f"checkpoint {_saved(status.newest_checkpoint)}",
        f"restarts {status.restarts}",
        f"incidents {status.incidents}",
        f"loss spikes {status.loss_spikes}",
    ]
    if status.deadline_s > 0:
        parts.append(f"deadline {status.deadline_s:.1f} s")
    return " · ".join(parts)


def incident_line(incident: Incident) -> str:
    """Return an incident in one line."""
    state = enum_phrase(IncidentState, incident.state)
    return f"{incident.verdict.message or verdict_word(incident)} [{state}]"


def fault_line(injected: FaultInjected) -> str:
    """Return what was done to a rank on purpose, or will be done to it later."""
    fault = injected.fault
    if injected.waits_for:
        return f"fault armed: {fault.kind} of rank {fault.rank}, waits for {injected.waits_for}"
    what = f"{fault.kind} of rank {fault.rank} in step {injected.step}"
    if fault.phase:
        return f"fault armed: {what} or later, at the start of the phase {enum_phrase(Phase, fault.phase)}"
    return f"fault armed: {what}" if fault.step > 0 else f"fault injected: {what}"


def refusal_line(refused: FaultRefused) -> str:
    """Return what was not done to a rank, and why."""
    return f"{refused.fault.kind} of rank {refused.fault.rank}: {refused.reason}"


def verdict_word(incident: Incident) -> str:
    """Return the kind of an incident's verdict."""
    return enum_phrase(VerdictKind, incident.verdict.kind)


def outcome_line(incident: Incident) -> str:
    """Return how long a recovery took and what it cost, or "" while there is none."""
    if not incident.recovered_unix_s:
        return ""
    took_s = incident.recovered_unix_s - incident.detected_unix_s
    return f"training again {took_s:.1f} s after detection, {incident.lost_steps} steps lost"


def _step(newest: int, total_steps: int | None) -> str:
    if newest < 0:
        return "no step yet"
    done = newest + 1
    return f"{done} steps" if total_steps is None else f"{done} of {total_steps} steps"


def _saved(step: int) -> str:
    return "none" if step < 0 else f"of step {step}"
