import io

from rich.console import Console

from holdfast_cli.incidents.story import wait_trees
from holdfast_proto.v1.store_pb2 import WaitEdge


def drawn(*edges: tuple[int, int, str]) -> list[str]:
    output = io.StringIO()
    for tree in wait_trees([WaitEdge(waiter=w, awaited=a, group=g, seq=8, op="recv") for w, a, g in edges]):
        Console(file=output, width=100).print(tree)
    return output.getvalue().splitlines()


def test_those_who_wait_for_a_waiter_hang_below_it() -> None:
    assert drawn((0, 2, "tp"), (1, 2, "tp"), (5, 1, "pp")) == [
        "rank 2",
        "└── ranks 0, 1 in recv 8 of tp",
        "    └── rank 5 in recv 8 of pp",
    ]


def test_a_cycle_is_drawn_once_round() -> None:
    assert drawn((0, 1, "a"), (1, 0, "b")) == [
        "rank 0",
        "└── rank 1 in recv 8 of b",
        "    └── rank 0 in recv 8 of a (above)",
    ]


def test_ranks_that_wait_without_an_edge_of_their_own_are_counted() -> None:
    output = io.StringIO()
    edges = [WaitEdge(waiter=rank, awaited=5, group="dp", seq=8, op="all_reduce", waiters=63) for rank in range(5)]
    edges[0].op = "gloo:all_reduce"  # of one rank alone, the recorder was read
    (tree,) = wait_trees(edges)
    Console(file=output, width=100).print(tree)
    assert output.getvalue().splitlines()[1:] == ["└── ranks 0, 1, 2, 3, 4 and 58 more in gloo:all_reduce 8 of dp"]
