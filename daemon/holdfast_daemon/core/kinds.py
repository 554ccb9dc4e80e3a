"""Kinds of verdicts by what becomes of them."""

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
"""The run stands still; a new generation may bring it back."""

HANGS = (
    store.VERDICT_KIND_HUNG_COLLECTIVE,
    store.VERDICT_KIND_MISMATCHED_ORDER,
    store.VERDICT_KIND_TRANSPORT,
    store.VERDICT_KIND_DATA_STALL,
    store.VERDICT_KIND_STANDSTILL,
)
"""The ranks are there and do not move: their stacks and recorders tell more."""
