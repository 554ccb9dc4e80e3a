"""Runs that have become slow, and memory that runs out."""

from holdfast_daemon.core.naming import gib, ranks_named
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
