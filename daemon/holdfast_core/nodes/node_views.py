"""The nodes of a run, as operators see them."""

from holdfast_core.model import CoreState
from holdfast_core.nodes.node_faults import reasons
from holdfast_core.nodes.node_speeds import checks_of, slow_lines
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED


def unfit_nodes(state: CoreState) -> dict[str, str]:
    """Return the members and spares that should not train, with the reasons; none once the run has ended."""
    if state.record.phase in ENDED:
        return {}
    here = {*state.record.nodes, *state.nodes}
    return {name: reason for name, reason in reasons(state.record).items() if name in here}


def node_views(state: CoreState) -> list[control.NodeView]:
    """Return all members in rank order, then spares and nodes with a history, by name."""
    members, histories = list(state.record.nodes), {one.node: one for one in state.record.node_histories}
    others = sorted({*state.nodes, *histories} - set(members))
    slow = slow_lines(checks_of(state))
    views = []
    for name in (*members, *others):
        node = state.nodes.get(name)
        view = control.NodeView(node=name, role=_role(name in members, node), slow=slow.get(name, ()))
        if node is not None and node.HasField("check"):
            view.check.CopyFrom(node.check)
        if name in histories:
            view.history.CopyFrom(histories[name])
        views.append(view)
    return views


def _role(is_member: bool, node: store.NodeState | None) -> "control.NodeRole":
    if is_member:
        return control.NODE_ROLE_MISSING if node is None else control.NODE_ROLE_MEMBER
    return control.NODE_ROLE_ABSENT if node is None else control.NODE_ROLE_SPARE
