"""Says whether a job whose launcher has failed is worth a requeue: for wrappers in batch systems and clusters.

It decides from what Holdfast knows about the last generation of the run. Where that shows neither an infrastructure
failure nor a fault that comes back, the launcher's own exit code stays.
"""

from collections.abc import Sequence

from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store

REPEATED = 3
"""Generations in a row in which the same rank fails at the same step. Then its data or its state is the cause."""

_INFRASTRUCTURE = (store.VERDICT_KIND_LOST_NODE, store.VERDICT_KIND_TRANSPORT)
_FAILURES = (
    store.VERDICT_KIND_DEAD_RANK,
    store.VERDICT_KIND_HUNG_COLLECTIVE,
    store.VERDICT_KIND_MISMATCHED_ORDER,
    store.VERDICT_KIND_TRANSPORT,
    store.VERDICT_KIND_LOST_NODE,
    store.VERDICT_KIND_DATA_STALL,
    store.VERDICT_KIND_STANDSTILL,
    store.VERDICT_KIND_BAD_CONFIGURATION,
)
"""Kinds of verdicts that say why a generation ended."""


def requeue_code(
    launcher_code: int, generation: int, incidents: Sequence[store.Incident], *, ends_badly: bool
) -> tuple[int, str]:
    """Return an exit code and the reason for it, in words; the launcher's code and "" if neither is known.

    Args:
        launcher_code: Exit code of the launcher, as in a shell.
        generation: The last generation of the run.
        incidents: All incidents of the run, oldest first.
        ends_badly: Whether the newest loss was not finite.
    """
    if launcher_code == 0:
        return 0, ""
    failures = [one for one in incidents if one.verdict.kind in _FAILURES and _has_ended_it(one)]
    last = [one for one in failures if one.generation == generation]
    never = _why_never(last, failures, ends_badly=ends_badly)
    if never:
        return ExitCode.DO_NOT_REQUEUE, never
    again = next(filter(None, map(_why_again, last)), "")
    return (ExitCode.REQUEUE, again) if again else (launcher_code, "")


def _has_ended_it(incident: store.Incident) -> bool:
    """Whether a generation may have ended because of an incident: a standstill that was over has ended nothing."""
    return incident.state != store.INCIDENT_STATE_RESOLVED or incident.HasField("abort")


def _why_never(last: Sequence[store.Incident], failures: Sequence[store.Incident], *, ends_badly: bool) -> str:
    wrong = (one.verdict.message for one in last if one.verdict.kind == store.VERDICT_KIND_BAD_CONFIGURATION)
    if message := next(wrong, ""):
        return message
    if ends_badly:
        return "the newest loss is not finite"
    if not last:
        return ""
    # Several verdicts on one generation may name victims too: only its first one counts.
    first_of = {one.generation: one for one in reversed(failures)}
    newest = [first_of[number] for number in sorted(first_of, reverse=True)][:REPEATED]
    places = {(one.verdict.kind, *one.verdict.culprits[:1], one.verdict.step) for one in newest}
    verdict = newest[0].verdict
    if len(newest) < REPEATED or len(places) > 1 or not verdict.culprits or verdict.step < 0:
        return ""
    return f"rank {verdict.culprits[0]} failed at step {verdict.step} in each of the last {REPEATED} generations"


def _why_again(incident: store.Incident) -> str:
    verdict = incident.verdict
    if incident.HasField("abort"):
        return f"a hang was ended: {verdict.message}"
    gpu_faults = [*(held.gpu_fault for held in verdict.hang.ranks), *(end.gpu_fault for end in verdict.death.ends)]
    is_infrastructure = verdict.kind in _INFRASTRUCTURE or any(fault.fatal for fault in gpu_faults)
    was_killed = any(end.cause == store.END_CAUSE_KILLED for end in verdict.death.ends)
    return verdict.message if is_infrastructure or was_killed else ""
