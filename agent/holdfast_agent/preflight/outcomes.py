"""How a check ends, apart from a figure, and what people call each check.

A check that fails calls the node unfit. So only a clear fault is a failure. What may have another reason, such as a
machine that is odd or busy, or that lacks a tool, is not measured.
"""

from holdfast_proto.v1 import store_pb2 as store

NAMES = {
    store.CHECK_KIND_DISK: "disk",
    store.CHECK_KIND_SHM: "shared memory",
    store.CHECK_KIND_LOOPBACK: "loopback",
    store.CHECK_KIND_NETWORK: "network",
    store.CHECK_KIND_CPU_GEMM: "CPU GEMM",
    store.CHECK_KIND_CPU_MEMORY: "CPU memory",
    store.CHECK_KIND_GPU_GEMM: "GPU GEMM",
    store.CHECK_KIND_GPU_MEMORY: "GPU memory",
    store.CHECK_KIND_GPU_STATE: "GPU state",
    store.CHECK_KIND_CLOCK: "clock",
}
"""CheckKind -> its name for people."""

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
