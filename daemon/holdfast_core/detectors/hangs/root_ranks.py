"""The ranks at the root of the wait-for graph hold everybody up: they have stopped moving, or wait for data.

Two detectors share them, because the remedies differ: a new generation frees a rank that has stopped moving, and brings
no data to one that waits for it. Where ranks of both sorts hold the others up, all of them are named in one verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast_core.detectors.framework import Detector, DetectorResult
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.view import View
from holdfast_core.diagnosis.hosts.wait_graph import MissedCall
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class HungCollective(Detector):
    """Names the roots if any of them does anything but wait for data: that one first."""

    name: ClassVar[str] = "hung_collective"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once a root has stalled past the deadline of its own phase."""
        return _result(self, view, store.VERDICT_KIND_HUNG_COLLECTIVE)


@dataclass(frozen=True)
class DataStall(Detector):
    """Names the roots if all of them wait for data."""

    name: ClassVar[str] = "data_stall"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once a root has stalled past its deadline."""
        return _result(self, view, store.VERDICT_KIND_DATA_STALL)


def _result(detector: Detector, view: View, kind: "store.VerdictKind") -> DetectorResult:
    roots = hang.roots(view)
    verdict = root_verdict(view, roots) if roots else None
    if verdict is None or verdict.kind != kind:
        return DetectorResult(detector)
    return DetectorResult(detector, (hang.hang_finding(view, verdict),))


def root_verdict(view: View, roots: Sequence[int], missed: Mapping[int, MissedCall] | None = None) -> store.Verdict:
    """Return the verdict on the ranks at the root, without waits and confidence.

    ``missed``: the calls in which others wait for them, where recorders show these.
    """
    stuck = [rank for rank in roots if view.activity(rank) != common.ACTIVITY_DATA]
    culprits = [*stuck, *(rank for rank in roots if rank not in stuck)]
    ranks = [hang.held_rank(view, rank, (missed or {}).get(rank)) for rank in culprits]
    in_start = hang.waits_in_start(view, culprits)
    kind = store.VERDICT_KIND_HUNG_COLLECTIVE if stuck else store.VERDICT_KIND_DATA_STALL
    return store.Verdict(kind=kind, culprits=culprits, hang=store.HangDetail(ranks=ranks, in_start=in_start))
