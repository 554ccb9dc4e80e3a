"""All members of a group have entered a call and it does not complete: transport or device, not a rank."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors import hang
from holdfast_daemon.core.detectors.framework import Detector, Sight
from holdfast_daemon.core.detectors.mismatched_order import MismatchedOrder
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class Transport(Detector):
    """Names the group, the call, and the nodes between which it runs."""

    name: ClassVar[str] = "transport"

    def see_turn(self, view: View) -> Sight:
        """Judge once the group's ranks have stalled past their deadlines, and no rank and no mismatch explain it."""
        if not hang.stands_still(view) or hang.roots(view) or view.finding.cycle:
            return Sight(self)
        if not view.finding.everyone_arrived or MismatchedOrder().see_turn(view).seen:
            return Sight(self)
        members = view.finding.everyone_arrived[0].members
        nodes = sorted({view.node_of[rank] for rank in members if rank in view.node_of})
        between = f" between nodes {', '.join(nodes)}" if len(nodes) > 1 else ""
        message = (
            f"all ranks of group {hang.group_name(view, view.finding.group)} have entered call {view.finding.seq}"
            f" and it does not complete{between}: transport or device, not a rank"
        )
        return Sight(self, (hang.seen_hang(view, store.VERDICT_KIND_TRANSPORT, [], message),))
