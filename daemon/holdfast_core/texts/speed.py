"""Runs that have become slow, ranks and nodes that slow them down, and memory that runs out."""

from holdfast_core.naming import gib, phase_name, ranks_named
from holdfast_core.texts import places
from holdfast_proto.v1 import store_pb2 as store

_BOTTLENECKS = {
    store.BOTTLENECK_DATA: "data",
    store.BOTTLENECK_CHECKPOINTS: "checkpoints",
    store.BOTTLENECK_BUBBLE: "the pipeline's bubble",
    store.BOTTLENECK_COMPUTATION: "computation",
    store.BOTTLENECK_COMMUNICATION: "communication",
    store.BOTTLENECK_COMPUTATION_OR_COMMUNICATION: "computation or communication",
}


def data_share(verdict: store.Verdict) -> str:
    """Return which share of the steps' time is spent waiting for data."""
    detail, culprits = verdict.data_share, verdict.culprits
    who = f", {ranks_named(culprits)} longest" if culprits else ", all ranks alike" if detail.all_alike else ""
    return f"steps wait {detail.share_ratio:.0%} of their time for data{who}"


def throughput(verdict: store.Verdict) -> str:
    """Return since when the run is slower, by how much, and what likely holds it up."""
    detail, what = verdict.throughput, []
    if detail.HasField("step_s"):
        factor = detail.step_s / detail.step_before_s
        seconds = f"{detail.step_s:.3g} s, {detail.step_before_s:.3g} s before"
        what.append(f"steps take {factor:.1f} times as long ({seconds})")
    if detail.HasField("mfu_ratio"):
        what.append(f"devices do {detail.mfu_ratio:.0%} of what they could, {detail.mfu_before_ratio:.0%} before")
    cause = _BOTTLENECKS.get(detail.bottleneck, "")
    likely = f": the bottleneck is likely {cause}" if cause else ""
    return f"since step {detail.since_step} {' and '.join(what)}{likely}"


def memory(verdict: store.Verdict) -> str:
    """Return how fast memory grows, and when the first rank reaches its limit."""
    detail, culprits = verdict.memory, verdict.culprits
    return (
        f"memory of {ranks_named(culprits)} grows by {gib(detail.bytes_per_hour)} per hour: rank {culprits[0]} reaches"
        f" its limit of {gib(detail.limit_bytes)} in {detail.hours_left:.1f} h"
    )


def allocator(verdict: store.Verdict) -> str:
    """Return who ran out of device memory, or nearly."""
    detail, who = verdict.allocator, ranks_named(verdict.culprits)
    if detail.ran_out:
        return f"{who} ran out of device memory and continued"
    return (
        f"the allocator of {who} found memory only by emptying its cache in {detail.minutes} of {detail.of_minutes}"
        " minutes: device memory is nearly full, or fragmented"
    )


def straggler(verdict: store.Verdict) -> str:
    """Return who is slow, since when, in what phase, and by how much the slowest rank is."""
    culprits = verdict.culprits
    who = f"{ranks_named(culprits)} {'is' if len(culprits) == 1 else 'are'}"
    if verdict.node:
        who = f"node {verdict.node} is"
    if verdict.straggler.kind == store.OWN_TIME_KIND_DEVICE:
        return f"{who} slow since step {verdict.step}, on the GPU: {_works(verdict)}{places.witness(verdict)}"
    how = _sleeps(verdict) if verdict.straggler.kind == store.OWN_TIME_KIND_ASLEEP else _needs(verdict)
    return f"{who} slow since step {verdict.step}, in {phase_name(verdict.phase)}: {how}{places.witness(verdict)}"


def _works(verdict: store.Verdict) -> str:
    detail, culprits = verdict.straggler, verdict.culprits
    gpu = "its GPU" if len(culprits) == 1 else f"that of {ranks_named(culprits[:1])}"
    compared = f"those of its peers {detail.usual_s:.3g} s" if detail.by_peers else f"{detail.usual_s:.3g} s before"
    factor = f" ({detail.own_s / detail.usual_s:.1f} times as much)" if detail.usual_s > 0.0 else ""
    return f"{gpu} works {detail.own_s:.3g} s per step without waiting for other ranks, {compared}{factor}"


def _needs(verdict: store.Verdict) -> str:
    detail, culprits = verdict.straggler, verdict.culprits
    whose = "" if len(culprits) == 1 else f"{ranks_named(culprits[:1])} needs "
    compared = f"its peers {detail.usual_s:.3g} s" if detail.by_peers else f"{detail.usual_s:.3g} s before"
    factor = f" ({detail.own_s / detail.usual_s:.1f} times as much)" if detail.usual_s > 0.0 else ""
    return f"{whose}{detail.own_s:.3g} s of its own time per step, {compared}{factor}"


def _sleeps(verdict: store.Verdict) -> str:
    # The times are estimates from samples, so they have two digits and no factor.
    detail, culprits = verdict.straggler, verdict.culprits
    compared = f"those of its peers {detail.usual_s:.2g} s" if detail.by_peers else f"{detail.usual_s:.2g} s before"
    thread = "its training thread" if len(culprits) == 1 else f"the training thread of {ranks_named(culprits[:1])}"
    return f"{thread} sleeps about {detail.own_s:.2g} s per step while no call with other ranks is pending, {compared}"
