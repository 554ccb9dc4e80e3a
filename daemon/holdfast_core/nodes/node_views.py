"""The nodes of a run, as operators see them."""

from collections.abc import Sequence

from holdfast_core.model import CoreState
from holdfast_core.nodes.node_faults import reasons
from holdfast_core.nodes.node_speeds import checks_of, slow_lines
from holdfast_core.nodes.start_patience import SPARE_PATIENCE_S
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

_MISSING_ADVICE = (
    "start `holdfast agent` on another node: the run takes it in when it has been ready for --resize-after-s"
)
_UNFIT_ADVICE = "`holdfast nodes` shows what is known against it, and `holdfast nodes --release` ends that"


def nodes_note(state: CoreState) -> str:
    """Return how many of its nodes and ranks the run lacks, and which nodes should not train; "" if all is well."""
    record, spec = state.record, state.spec
    lines = []
    if _is_smaller(state):
        nodes, each = len(record.nodes), spec.ranks_per_node
        ranks = f"{nodes * each} of {spec.nodes * each} ranks"
        lines.append(f"trains with {nodes} of {spec.nodes} nodes ({ranks}) since incident {record.shrunk_incident}")
    unfit = unfit_nodes(state)
    if unfit:
        wait = f", and the run waits up to {SPARE_PATIENCE_S:.0f} s for another one" if _waits(state) else ""
        more = f" (and {len(unfit) - 1} more nodes should not)" if len(unfit) > 1 else ""
        lines.append(f"node {min(unfit)} should not train: {unfit[min(unfit)]}{more}{wait}")
    return "; ".join(lines)


def nodes_advice(state: CoreState) -> str:
    """Return what to do about what :func:`nodes_note` says."""
    unfit = unfit_nodes(state)
    is_ready = any(name in state.nodes and name not in state.record.nodes for name in unfit)  # it is not taken in
    if _is_smaller(state) and not is_ready:
        return _MISSING_ADVICE
    return _UNFIT_ADVICE if unfit else ""


def _waits(state: CoreState) -> bool:
    return state.record.phase == store.RUN_PHASE_WAITING and state.start_waits_since_unix_s > 0.0


def _is_smaller(state: CoreState) -> bool:
    return bool(state.record.shrunk_incident) and state.record.phase == store.RUN_PHASE_RUNNING


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
        view = control.NodeView(node=name, role=_role(members, name, node), slow=slow.get(name, ()))
        if node is not None and node.HasField("check"):
            view.check.CopyFrom(node.check)
        if name in histories:
            view.history.CopyFrom(histories[name])
        views.append(view)
    return views


def _role(members: Sequence[str], name: str, node: store.NodeState | None) -> "control.NodeRole":
    if name in members:
        return control.NODE_ROLE_MISSING if node is None else control.NODE_ROLE_MEMBER
    if node is None:
        return control.NODE_ROLE_ABSENT
    if not node.ready:
        return control.NODE_ROLE_STARTING
    return control.NODE_ROLE_SPARE if members else control.NODE_ROLE_READY
