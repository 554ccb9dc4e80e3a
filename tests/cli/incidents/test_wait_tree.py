import io

from rich.console import Console

from holdfast_cli.incidents.wait_tree import ranks_text, wait_trees
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


def test_of_many_ranks_the_first_are_named() -> None:
    assert ranks_text(range(100)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"
    assert ranks_text([4]) == "rank 4"
