"""What is wrong with a node, for people."""

from collections.abc import Iterable

from holdfast_core.naming import listed
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import CHECKS

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


OF_GPU = (store.CHECK_KIND_GPU_GEMM, store.CHECK_KIND_GPU_MEMORY)
"""Checks that have one figure for each GPU."""


def figure_text(figure: store.CheckFigure) -> str:
    """Return a figure with its unit: ``1.2 GB/s``, ``48 GFLOP/s``; of a clock ``0.003 s``."""
    return _quantity(figure.value, CHECKS[figure.kind].unit)


def slow_line(figure: store.CheckFigure, usual: float) -> str:
    """Return that a figure is far below the median of all nodes."""
    check, device = CHECKS[figure.kind], f" of GPU {figure.device}" if figure.kind in OF_GPU else ""
    return f"{check.name}{device}: {figure_text(figure)}, and {_quantity(usual, check.unit)} is usual on other nodes"


def failure_line(failure: store.CheckFailure) -> str:
    """Return what has failed, and how."""
    return f"{CHECKS[failure.kind].name}: {failure.reason}"


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
