import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from holdfast_base.text import moment
from holdfast_cli.views.node_table import node_table
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store

CHECKED = store.NodeCheck(ended_unix_s=1e9, took_s=4.25)
REASON = "at fault 4 times"


def view(node: str = "a", role: "control.NodeRole" = control.NODE_ROLE_MEMBER, **known: Any) -> control.NodeView:
    return control.NodeView(node=node, role=role, **known)


def against(node: str = "a", faults: int = 0, **known: Any) -> store.NodeHistory:
    made = store.NodeHistory(node=node, **known)
    for number in range(faults):
        made.faults.add(
            unix_s=1e9 + number, kind=store.VERDICT_KIND_LOST_NODE, run="r", incident=f"000{number}-lost-node"
        )
    return made


def draw(nodes: Sequence[control.NodeView], *, everything: bool = False) -> list[str]:
    """Return the lines of the table below its head, without spaces at their ends."""
    console = Console(file=io.StringIO(), width=250, record=True)
    console.print(node_table(nodes, everything=everything))
    return [" ".join(line.split()) for line in console.export_text().splitlines() if line.strip()][2:]


@pytest.mark.parametrize(
    ("check", "slow", "words"),
    [
        ({}, [], ["ok"]),
        ({"unmeasured": "another job uses the GPUs"}, [], ["speeds are not measured: another job uses the GPUs"]),
        (
            {"failures": [store.CheckFailure(kind=store.CHECK_KIND_SHM, reason="no space left")]},
            ["disk: 1 MB/s, and 1 GB/s is usual on the nodes of the run"],
            ["shared memory: no space left", "disk: 1 MB/s, and 1 GB/s is usual on the nodes of the run"],
        ),
    ],
)
def test_the_newest_check_says_what_is_wrong_and_what_was_not_measured(
    check: dict[str, Any], slow: list[str], words: list[str]
) -> None:
    made = store.NodeCheck(**check)
    made.MergeFrom(CHECKED)
    assert draw([view(check=made, slow=slow)]) == [f"a trains {moment(1e9)}, took 4.25 s", *words]


def test_a_node_without_a_check_or_a_history_is_only_named() -> None:
    assert draw([view(role=control.NODE_ROLE_SPARE)]) == ["a spare -"]


def test_the_newest_faults_are_listed_and_older_ones_counted() -> None:
    assert draw([view(history=against(faults=5, quarantine=REASON, since_unix_s=1e9))]) == [
        f"a trains - {moment(1e9 + 4)}: 0004-lost-node of r since {moment(1e9)}: {REASON}",
        f"{moment(1e9 + 3)}: 0003-lost-node of r",
        f"{moment(1e9 + 2)}: 0002-lost-node of r",
        "2 older",
    ]


def test_faults_before_a_release_are_not_listed() -> None:
    assert draw([view(history=against(faults=2, released_unix_s=2e9))]) == [f"a trains - released {moment(2e9)}"]


def test_of_many_nodes_those_with_something_against_them_come_first_and_the_others_are_counted() -> None:
    nodes = [view(f"n{number:02}") for number in range(40)]
    nodes[30].history.CopyFrom(against("n30", faults=1))
    nodes[31].role = control.NODE_ROLE_MISSING
    nodes[32].slow.append("disk")
    nodes[33].history.CopyFrom(against("n33", quarantine=REASON))
    lines = draw(nodes)
    names = [line.split()[0] for line in lines if line.startswith("n")]
    assert names == ["n33", "n32", "n30", "n31", *(f"n{number:02}" for number in range(16))]
    assert lines[-1] == "20 more nodes, and nothing is known against them: add --all"
    assert len([line for line in draw(nodes, everything=True) if line.startswith("n")]) == 40


def test_a_run_of_which_no_node_is_known_says_so() -> None:
    console = Console(file=io.StringIO(), record=True)
    console.print(node_table([], everything=False))
    assert console.export_text() == "no nodes\n"
