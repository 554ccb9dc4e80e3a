"""The rank at the root of the wait-for graph waits for data: no hang, and a restart would not help."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class DataStall(Detector):
    """Names the ranks whose data does not come."""

    name: ClassVar[str] = "data_stall"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once such a rank has stalled past its deadline."""
        kind = store.VERDICT_KIND_DATA_STALL
        return DetectorResult(
            self, hang.root_findings(view, kind, is_meant=lambda activity: activity == common.ACTIVITY_DATA)
        )
