"""A rank that others wait for has stopped moving: the root of the wait-for graph."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors import hang
from holdfast_daemon.core.detectors.framework import Detector, Sight
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class HungCollective(Detector):
    """Names the root, what it is doing, and who waits for it in which call."""

    name: ClassVar[str] = "hung_collective"

    def see_turn(self, view: View) -> Sight:
        """Judge once the root has stalled past the deadline of its own phase."""
        roots = hang.roots(view)
        if not roots or view.activity(roots[0]) == common.ACTIVITY_DATA:
            return Sight(self)
        message = hang.root_message(view, roots[0])
        return Sight(self, (hang.seen_hang(view, store.VERDICT_KIND_HUNG_COLLECTIVE, roots, message),))
