"""What is wrong with the GPU of a rank."""

from holdfast_daemon.core.naming import listed
from holdfast_proto.v1 import store_pb2 as store


def after(fault: store.GpuFault) -> str:
    """Return e.g. ", after Xid 79 on its GPU 3 (the GPU has fallen off the bus)"; nothing without an error."""
    if not (fault.xid or fault.meaning):
        return ""
    meaning = f" ({fault.meaning})" if fault.meaning else ""
    what = f"Xid {fault.xid} on" if fault.xid else "an error of"
    return f", after {what} its GPU {fault.gpu}{meaning}"


def slowed_down(detail: store.StragglerDetail) -> str:
    """Return why the GPU of a slow rank is slow; nothing if its clocks are not low."""
    return f"; the clocks of its GPU {detail.gpu} are low: {listed(detail.throttles)}" if detail.throttles else ""
