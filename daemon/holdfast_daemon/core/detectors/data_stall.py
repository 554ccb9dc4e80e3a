"""The rank at the root of the wait-for graph waits for data: no hang, and a restart would not help."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors import hang
from holdfast_daemon.core.detectors.framework import Detector, Sight
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class DataStall(Detector):
    """Names the rank whose data does not come."""

    name: ClassVar[str] = "data_stall"

    def see_turn(self, view: View) -> Sight:
        """Judge once that rank has stalled past its deadline."""
        roots = hang.roots(view)
        if not roots or view.activity(roots[0]) != common.ACTIVITY_DATA:
            return Sight(self)
        message = hang.root_message(view, roots[0])
        return Sight(self, (hang.seen_hang(view, store.VERDICT_KIND_DATA_STALL, roots, message),))
