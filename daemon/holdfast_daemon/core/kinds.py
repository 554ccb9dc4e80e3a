"""Kinds of verdicts by how they are handled."""

from holdfast_proto.v1 import store_pb2 as store

RECOVERABLE = (
    store.VERDICT_KIND_DEAD_RANK,
    store.VERDICT_KIND_HUNG_COLLECTIVE,
    store.VERDICT_KIND_MISMATCHED_ORDER,
    store.VERDICT_KIND_TRANSPORT,
    store.VERDICT_KIND_LOST_NODE,
    store.VERDICT_KIND_DATA_STALL,
    store.VERDICT_KIND_STANDSTILL,
)
"""Kinds in which the run stands still, and a new generation may bring it back."""

HANGS = (
    store.VERDICT_KIND_HUNG_COLLECTIVE,
    store.VERDICT_KIND_MISMATCHED_ORDER,
    store.VERDICT_KIND_TRANSPORT,
    store.VERDICT_KIND_DATA_STALL,
    store.VERDICT_KIND_STANDSTILL,
)
"""Kinds in which the ranks exist and do not move, so that their stacks and recorders show more."""
