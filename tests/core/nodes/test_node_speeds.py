"""What is slow on a node, compared with the other nodes of the run."""

import pytest

from holdfast_core.nodes.node_speeds import SLOW_SHARES, slow_lines
from holdfast_proto.v1 import store_pb2 as store


def measured(kind: "store.CheckKind", *values: float) -> dict[str, store.NodeCheck]:
    """Return one check for each value."""
    figures = [store.CheckFigure(kind=kind, value=value) for value in values]
    return {f"n{number}": store.NodeCheck(figures=[figure]) for number, figure in enumerate(figures)}


@pytest.mark.parametrize("kind", SLOW_SHARES)
def test_a_figure_below_its_share_of_the_median_is_slow_and_one_above_is_not(kind: "store.CheckKind") -> None:
    share = SLOW_SHARES[kind]
    assert set(slow_lines(measured(kind, 8e9, 8e9, 8e9, 8e9 * share * 0.99))) == {"n3"}
    assert slow_lines(measured(kind, 8e9, 8e9, 8e9, 8e9 * share * 1.01)) == {}


def test_the_line_has_both_figures() -> None:
    assert slow_lines(measured(store.CHECK_KIND_CPU_GEMM, 50e9, 52e9, 48e9, 2e9)) == {
        "n3": ["CPU GEMM: 2 GFLOP/s, and 49 GFLOP/s is usual on other nodes"]
    }


def test_of_few_nodes_nobody_knows_which_is_wrong() -> None:
    assert slow_lines(measured(store.CHECK_KIND_CPU_GEMM, 50e9, 50e9, 1e9)) == {}


def test_the_gpus_of_one_node_are_compared_with_each_other() -> None:
    values = [400e12] * 7 + [90e12]
    figures = [store.CheckFigure(kind=store.CHECK_KIND_GPU_GEMM, device=at, value=v) for at, v in enumerate(values)]
    [line] = slow_lines({"n0": store.NodeCheck(figures=figures)})["n0"]
    assert line.startswith("GPU GEMM of GPU 7: 90 TFLOP/s")


def test_clocks_are_not_speeds() -> None:
    assert slow_lines(measured(store.CHECK_KIND_CLOCK, 1.0, 1.0, 1.0, -5.0)) == {}
