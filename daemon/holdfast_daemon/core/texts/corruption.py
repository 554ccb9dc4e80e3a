"""Ranks whose memory differs from that of their replicas."""

from holdfast_daemon.core.naming import ranks_named
from holdfast_proto.v1 import store_pb2 as store


def corruption(verdict: store.Verdict) -> str:
    """Return who holds other values of what, and why they should be equal if nothing but their history shows it."""
    detail, who = verdict.corruption, ranks_named(verdict.culprits)
    part = detail.part or "a sample of the parameters"
    more = f" and {detail.more_parts} more" if detail.more_parts else ""
    where = f"of {part}{more} at the end of step {verdict.step}"
    before = f", and the same at the end of step {detail.equal_step}" if detail.HasField("equal_step") else ""
    if detail.has_majority:
        verb = "holds" if len(verdict.culprits) == 1 else "hold"
        all_before = f"; at the end of step {detail.equal_step} all held the same" if before else ""
        return f"{who} {verb} other values than the replicas' majority {where}{all_before}"
    if before:
        either = "the memory of either is corrupted, or the training loop no longer keeps them equal"
        return f"{who} hold different values {where}{before}: {either}"
    return f"{who} hold different values {where}: without a majority, it is not known which are wrong"
