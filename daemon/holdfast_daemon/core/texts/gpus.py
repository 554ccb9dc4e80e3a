"""What is wrong with the GPU of a rank."""

from holdfast_daemon.core.naming import listed, ranks_named
from holdfast_proto.v1 import store_pb2 as store


def after(fault: store.GpuFault) -> str:
    """Return e.g. ", after Xid 79 on its GPU 3 (the GPU has fallen off the bus)"; nothing without an error."""
    if not (fault.xid or fault.meaning):
        return ""
    meaning = f" ({fault.meaning})" if fault.meaning else ""
    what = f"Xid {fault.xid} on" if fault.xid else "an error of"
    return f", after {what} its GPU {fault.gpu}{meaning}"


def witness(verdict: store.Verdict) -> str:
    """Return what the GPU of the slowest rank shows of the cause; nothing if it shows none."""
    detail, culprits = verdict.straggler, verdict.culprits
    gpu = f"its GPU {detail.gpu}" if len(culprits) == 1 else f"GPU {detail.gpu} of {ranks_named(culprits[:1])}"
    clocks = f"; the clocks of {gpu} are low: {listed(detail.throttles)}" if detail.throttles else ""
    if not detail.side:
        return clocks
    shares = f"{detail.utilization_ratio:.0%} of the time, those of its peers {detail.peers_utilization_ratio:.0%}"
    if detail.side == store.SLOW_SIDE_GPU:
        return f"{clocks}; it runs kernels {shares}: that points to the GPU itself"
    return f"{clocks}; {gpu} runs kernels {shares}: that points to its host"
