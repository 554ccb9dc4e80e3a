"""The nodes of a run as a table: their newest check, their faults, and which of them should not train."""

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_base.text import moment
from holdfast_cli.views.phrases import duration
from holdfast_core.nodes.node_faults import counted_faults
from holdfast_core.texts.incident_lines import enum_phrase, number_of
from holdfast_core.texts.nodes import failure_line
from holdfast_proto.v1.control_pb2 import (
    NODE_ROLE_ABSENT,
    NODE_ROLE_MEMBER,
    NODE_ROLE_MISSING,
    NODE_ROLE_READY,
    NODE_ROLE_SPARE,
    NODE_ROLE_STARTING,
    NodeRole,
    NodeView,
)
from holdfast_proto.v1.store_pb2 import NodeHistory

_NODES_SHOWN = 20
"""Nodes that are listed without --all, unless something is known against more of them."""
_FAULTS_SHOWN = 3
_ROLES: Mapping[int, str] = {
    NODE_ROLE_MEMBER: "trains",
    NODE_ROLE_MISSING: "missing",
    NODE_ROLE_SPARE: "spare",
    NODE_ROLE_ABSENT: "absent",
    NODE_ROLE_READY: "ready",
    NODE_ROLE_STARTING: "starting",
}


def node_table(nodes: Sequence[NodeView], *, everything: bool) -> RenderableType:
    """Return one row per node, and the number of those that are left out.

    Nodes that something is known against come first, and all of them are listed. Of the others, only those that fit on
    a screen are, unless ``everything`` is set. The texts of ``nodes`` must be safe for a terminal.
    """
    if not nodes:
        return Text("no nodes")
    ordered = sorted(nodes, key=_weight)
    odd = sum(_weight(node) < _NOTHING_KNOWN for node in nodes)
    shown = ordered if everything else ordered[: max(odd, _NODES_SHOWN)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("node", "is"):
        table.add_column(column, no_wrap=True)
    for column in ("newest check", "faults", "quarantine"):
        table.add_column(column)
    for node in shown:
        style = "yellow" if node.history.quarantine else ""
        cells = (node.node, _role(node), *map("\n".join, (_check(node), _faults(node.history), _quarantine(node))))
        table.add_row(*(Text(cell) for cell in cells), style=style)  # as texts: rich reads strings as markup
    left_out = len(nodes) - len(shown)
    if not left_out:
        return table
    return Group(table, Text(f"{number_of(left_out, 'more node')}, and nothing is known against them: add --all"))


_NOTHING_KNOWN = 3


def _weight(node: NodeView) -> int:
    """Return how soon a person should see a node: the least first."""
    if node.history.quarantine:
        return 0
    if node.check.failures or node.slow:
        return 1
    return 2 if node.role == NODE_ROLE_MISSING or counted_faults(node.history) else _NOTHING_KNOWN


def _role(node: NodeView) -> str:
    return _ROLES.get(node.role, enum_phrase(NodeRole, node.role))


def _check(node: NodeView) -> Iterator[str]:
    check = node.check
    if not node.HasField("check"):
        yield "-"
        return
    yield f"{moment(check.ended_unix_s)}, took {duration(check.took_s)}"
    if not node.history.quarantine:  # else that says what was found
        yield from map(failure_line, check.failures)
        yield from node.slow
    if check.unmeasured:
        yield f"speeds are not measured: {check.unmeasured}"
    elif not check.failures and not node.slow:
        yield "ok"


def _faults(history: NodeHistory) -> Iterator[str]:
    faults = counted_faults(history)
    for fault in faults[: -_FAULTS_SHOWN - 1 : -1]:
        yield f"{moment(fault.unix_s)}: {fault.incident} of {fault.run}"
    if len(faults) > _FAULTS_SHOWN:
        yield f"{len(faults) - _FAULTS_SHOWN} older"


def _quarantine(node: NodeView) -> Iterator[str]:
    history = node.history
    if history.quarantine:
        yield f"since {moment(history.since_unix_s)}: {history.quarantine}"
    elif history.released_unix_s:
        yield f"released {moment(history.released_unix_s)}"
