"""What is wrong with a node, for people."""

from collections.abc import Iterable, Mapping

from holdfast_core.naming import listed
from holdfast_proto.v1 import store_pb2 as store

_NAMES: Mapping[int, tuple[str, str]] = {
    store.CHECK_KIND_DISK: ("disk", "B/s"),
    store.CHECK_KIND_SHM: ("shared memory", "B/s"),
    store.CHECK_KIND_LOOPBACK: ("loopback", "B/s"),
    store.CHECK_KIND_NETWORK: ("network link", "bit/s"),
    store.CHECK_KIND_CPU_GEMM: ("CPU GEMM", "FLOP/s"),
    store.CHECK_KIND_CPU_MEMORY: ("CPU memory", "B/s"),
    store.CHECK_KIND_GPU_GEMM: ("GPU {} GEMM", "FLOP/s"),
    store.CHECK_KIND_GPU_MEMORY: ("GPU {} memory", "B/s"),
    store.CHECK_KIND_GPU_STATE: ("GPU state", ""),
    store.CHECK_KIND_CLOCK: ("clock", "s"),
}
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def check_name(kind: "store.CheckKind | int", device: int = 0) -> str:
    """Return the name of what a check looks at. ``device``: number of the GPU, if it is about one."""
    return _NAMES.get(kind, (f"check {kind}", ""))[0].format(device)


def figure_text(figure: store.CheckFigure) -> str:
    """Return a figure with its unit: ``1.2 GB/s``, ``48 GFLOP/s``; of a clock ``0.003 s``."""
    return _quantity(figure.value, _NAMES.get(figure.kind, ("", ""))[1])


def slow_line(figure: store.CheckFigure, usual: float) -> str:
    """Return that a figure is far below the median of all nodes."""
    unit = _NAMES[figure.kind][1]
    name = check_name(figure.kind, figure.device)
    return f"{name}: {figure_text(figure)}, and {_quantity(usual, unit)} is usual on the nodes of the run"


def failure_line(failure: store.CheckFailure) -> str:
    """Return what has failed, and how."""
    return f"{check_name(failure.kind)}: {failure.reason}"


def repeated_faults(faults: Iterable[store.NodeFault]) -> str:
    """Return how often a node was at fault, with the incidents."""
    names = [fault.incident for fault in faults]
    return f"at fault {len(names)} times: incidents {listed(reversed(names))}"


def _quantity(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.3f} s"
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
