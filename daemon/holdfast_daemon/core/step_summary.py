"""Merges the summaries that nodes send of one step."""

from collections.abc import MutableSequence

from holdfast_proto.step_quantities import MEANS
from holdfast_proto.v1 import store_pb2 as store

_ADDED = ("loss_sum", "loss_count", "tokens", "dropped_tokens")
_LARGEST = ("duration_s", "ended_unix_s")


def merge(one: store.StepSummary, other: store.StepSummary) -> store.StepSummary:
    """Return one summary of the ranks of two. Numbers that are equal on all ranks are taken from ``other``."""
    merged = store.StepSummary()
    merged.CopyFrom(one)
    merged.MergeFrom(other)
    for name in _ADDED:
        setattr(merged, name, getattr(one, name) + getattr(other, name))
    for name in _LARGEST:
        setattr(merged, name, max(getattr(one, name), getattr(other, name)))
    for name in MEANS:
        mean, more = getattr(one, name), getattr(other, name)
        if mean.count and more.count:
            getattr(merged, name).CopyFrom(store.Mean(sum=mean.sum + more.sum, count=mean.count + more.count))
    for phase, spent_s in one.phase_s.items():
        merged.phase_s[phase] = max(spent_s, merged.phase_s[phase])
    _join(merged.replicas)
    _join(merged.plain)
    return merged


def _join(sides: MutableSequence[store.ReplicaHashes]) -> None:
    """Join the entries of the same part with the same hash."""
    joined: dict[tuple[str, int], store.ReplicaHashes] = {}
    for side in sides:
        same = joined.setdefault((side.part, side.hash), side)
        if same is not side:
            same.ranks.extend(side.ranks)
    if len(joined) < len(sides):
        kept = [*joined.values()]
        del sides[:]
        sides.extend(kept)
