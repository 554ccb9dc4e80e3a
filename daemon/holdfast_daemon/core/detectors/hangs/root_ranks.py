"""The ranks at the root of the wait-for graph hold everybody up: they have stopped moving, or wait for data.

Two detectors share them, because the remedies differ: a new generation frees a rank that has stopped moving, and brings
no data to one that waits for it. Where ranks of both sorts hold the others up, all of them are named in one verdict.
"""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class HungCollective(Detector):
    """Names the roots if any of them does anything but wait for data: that one first."""

    name: ClassVar[str] = "hung_collective"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once a root has stalled past the deadline of its own phase."""
        roots = hang.roots(view)
        stuck = [rank for rank in roots if not _waits_for_data(view, rank)]
        if not stuck:
            return DetectorResult(self)
        culprits = [*stuck, *(rank for rank in roots if rank not in stuck)]
        return _result(self, view, store.VERDICT_KIND_HUNG_COLLECTIVE, culprits)


@dataclass(frozen=True)
class DataStall(Detector):
    """Names the roots if all of them wait for data."""

    name: ClassVar[str] = "data_stall"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once a root has stalled past its deadline."""
        roots = hang.roots(view)
        if not roots or not all(_waits_for_data(view, rank) for rank in roots):
            return DetectorResult(self)
        return _result(self, view, store.VERDICT_KIND_DATA_STALL, roots)


def _waits_for_data(view: View, rank: int) -> bool:
    return view.activity(rank) == common.ACTIVITY_DATA


def _result(detector: Detector, view: View, kind: "store.VerdictKind", culprits: list[int]) -> DetectorResult:
    ranks = [hang.held_rank(view, rank) for rank in culprits]
    in_start = hang.waits_in_start(view, culprits)
    verdict = store.Verdict(kind=kind, culprits=culprits, hang=store.HangDetail(ranks=ranks, in_start=in_start))
    return DetectorResult(detector, (hang.hang_finding(view, verdict),))
