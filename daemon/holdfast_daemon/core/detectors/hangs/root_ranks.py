"""A rank that others wait for has stopped moving: the root of the wait-for graph."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class HungCollective(Detector):
    """Names the root, what it is doing, and who waits for it in which call. Of several, all but those without data."""

    name: ClassVar[str] = "hung_collective"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once the root has stalled past the deadline of its own phase."""
        kind = store.VERDICT_KIND_HUNG_COLLECTIVE
        return DetectorResult(
            self, hang.root_findings(view, kind, is_meant=lambda activity: activity != common.ACTIVITY_DATA)
        )
