"""How a check ends, apart from a figure.

A check that fails calls the node unfit. So only a clear fault is a failure. What may have another reason, such as a
machine that is odd or busy, or that lacks a tool, is not measured.
"""

from holdfast_proto.v1 import store_pb2 as store

HANGS = (
    store.CHECK_KIND_DISK,
    store.CHECK_KIND_SHM,
    store.CHECK_KIND_GPU_GEMM,
    store.CHECK_KIND_GPU_MEMORY,
    store.CHECK_KIND_GPU_STATE,
)
"""Checks that wait for a device: if one does not end, the device hangs. The others may only be slow."""


class NodeFaultError(Exception):
    """The node should not train. The argument is the reason, one line for people."""


class UnmeasuredError(Exception):
    """Something could not be measured, and that is no fault. The argument is the reason, one line for people."""
