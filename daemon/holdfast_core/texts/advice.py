"""What to do about an incident: a line for each kind, and its section of the runbook."""

from dataclasses import dataclass

from holdfast_proto.v1 import store_pb2 as store

RUNBOOK_URL = "https://github.com/holdfast-dev/holdfast/blob/main/docs/runbook.md"
"""Address of the runbook. Alerts and the console add the anchor of a section."""
_READ_STACK = "Read the stack of the rank that the others wait for: it shows where that rank is"


@dataclass(frozen=True)
class Advice:
    """What to do next, and where the runbook says more."""

    next: str
    section: str


ADVICE = {
    store.VERDICT_KIND_DEAD_RANK: Advice("Read what the rank said last: `holdfast logs --culprit`", "rank-dead"),
    store.VERDICT_KIND_HUNG_COLLECTIVE: Advice(_READ_STACK, "run-hung"),
    store.VERDICT_KIND_MISMATCHED_ORDER: Advice(
        "Compare the calls of both sides, and fix the training code: a restart repeats it", "run-hung"
    ),
    store.VERDICT_KIND_TRANSPORT: Advice("Check the network and the devices of the named nodes", "run-hung"),
    store.VERDICT_KIND_LOST_NODE: Advice("Bring the node back, or start an agent on a spare one", "rank-dead"),
    store.VERDICT_KIND_NON_FINITE: Advice(
        "Look at the rank and the module in which the number was first not finite", "non-finite-numbers"
    ),
    store.VERDICT_KIND_LOSS_SPIKE: Advice(
        "See whether the loss comes back; if it does not, start again from the kept checkpoint", "loss-spike"
    ),
    store.VERDICT_KIND_LOSS_RISE: Advice("Compare with the kept checkpoint, and the learning rate", "loss-rise"),
    store.VERDICT_KIND_LOSS_DIVERGENCE: Advice(
        "Stop the run unless you expected this, and start again from the kept checkpoint", "loss-divergence"
    ),
    store.VERDICT_KIND_CHECKPOINT_FAILED: Advice(
        "Fix what the line names before the next one is due", "checkpoint-failed"
    ),
    store.VERDICT_KIND_BAD_CONFIGURATION: Advice(
        "Fix the setting that the line names, and start again", "bad-configuration"
    ),
    store.VERDICT_KIND_DATA_STALL: Advice("Check the storage behind the data loader", "slow-data"),
    store.VERDICT_KIND_DUPLICATE_SAMPLES: Advice(
        "Check the sampler: ranks train on the same samples", "duplicate-samples"
    ),
    store.VERDICT_KIND_OVERFLOW_LOOP: Advice(
        "Look at the loss scale and the gradients before it fell", "overflow-loop"
    ),
    store.VERDICT_KIND_STRAGGLER: Advice("Look at the node of the slow rank: heat, other processes, disk", "straggler"),
    store.VERDICT_KIND_SILENT_CORRUPTION: Advice(
        "Take the node out of service, and go back to a checkpoint from before", "silent-corruption"
    ),
    store.VERDICT_KIND_GRADIENT_EXPLOSION: Advice("Watch the loss: a spike may follow", "gradient-explosion"),
    store.VERDICT_KIND_MEMORY_CREEP: Advice("Look for tensors that the script keeps from step to step", "memory-creep"),
    store.VERDICT_KIND_ALLOCATOR_RETRIES: Advice(
        "Use less memory in a step, or limit fragmentation", "allocator-retries"
    ),
    store.VERDICT_KIND_THROUGHPUT_DROP: Advice("See what the line names as the bottleneck", "throughput-drop"),
    store.VERDICT_KIND_MISSING_LOSS: Advice("See why the script no longer reports its loss", "non-finite-loss"),
    store.VERDICT_KIND_STANDSTILL: Advice("Read the stacks: do the ranks compile, evaluate or read?", "run-hung"),
    store.VERDICT_KIND_LATE_EXIT: Advice("Read the stack of the rank whose process does not end", "late-exit"),
}
"""Kind of a verdict -> what to do about it."""


def runbook(kind: int) -> str:
    """Return the address of the section about a kind of verdict; "" if the runbook has none."""
    advice = ADVICE.get(kind)  # type: ignore[call-overload]
    return f"{RUNBOOK_URL}#{advice.section}" if advice is not None else ""


def advice_line(verdict: store.Verdict) -> str:
    """Return what a person should do about a verdict, without a full stop."""
    advice = ADVICE.get(verdict.kind)
    if verdict.non_finite.HasField("good_checkpoint"):
        back = f"stop the run, and start it again with --continue-from {verdict.non_finite.good_checkpoint}"
        return f"If the loss does not come back, {back}"
    if verdict.corruption.vote and verdict.corruption.has_majority:
        return "Test the node and its GPUs, or replace it: the replayed step is good, but others may not be"
    return verdict.device_call.next or (advice.next if advice is not None else "Read the incident's story")


def next_line(incident: store.Incident, spec: store.RunSpec) -> str:
    """Return what happens next, or what to do, for people. ``spec``: it decides what Holdfast may do to the run."""
    person = _ended(advice_line(incident.verdict))
    is_over = (store.INCIDENT_STATE_RECOVERED, store.INCIDENT_STATE_RESOLVED)
    if incident.state in (store.INCIDENT_STATE_OPEN, store.INCIDENT_STATE_STANDSTILL):
        return f"{_holdfasts_part(spec, is_open=incident.state == store.INCIDENT_STATE_OPEN)} {person}"
    return f"Nothing is urgent: it is over. {person}" if incident.state in is_over else person


def _holdfasts_part(spec: store.RunSpec, *, is_open: bool) -> str:
    """Return what Holdfast does about a run that stands still. ``is_open``: it does it already."""
    if spec.ranks_per_node and spec.mode == store.MODE_ACT:
        waits = "Holdfast waits, and restarts the run if the signs of a fault last."
        return "Holdfast restarts the run if it can." if is_open else waits
    if not spec.ranks_per_node and spec.on_hang in (store.HANG_ACTION_ABORT, store.HANG_ACTION_RESTART):
        waits = "Holdfast waits, and ends a hung rank if the signs of a fault last."
        if spec.on_hang == store.HANG_ACTION_RESTART:
            waits = f"{waits[:-1]} and the launcher has restarts left."
        return "The launcher ends or restarts the run once a hung rank is ended." if is_open else waits
    if not spec.ranks_per_node and spec.restores:
        return "If the launcher restarts the ranks, Holdfast restores their state."
    return "Holdfast only observes this run, and restarts nothing."


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."
