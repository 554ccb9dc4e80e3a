"""The ranks at the root of the wait-for graph hold everybody up: they have stopped moving, or wait for data.

Two detectors share the roots between them, because the remedies differ: a new generation frees a rank that has stopped
moving, and brings no data to one that waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.naming import listed, phase_name
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class HungCollective(Detector):
    """Names the roots that do anything but wait for data: what they do, and who waits for them in which call."""

    name: ClassVar[str] = "hung_collective"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once a root has stalled past the deadline of its own phase."""
        kind = store.VERDICT_KIND_HUNG_COLLECTIVE
        return DetectorResult(self, _findings(view, kind, lambda activity: activity != common.ACTIVITY_DATA))


@dataclass(frozen=True)
class DataStall(Detector):
    """Names the roots whose data does not come."""

    name: ClassVar[str] = "data_stall"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once a root has stalled past its deadline."""
        kind = store.VERDICT_KIND_DATA_STALL
        return DetectorResult(self, _findings(view, kind, lambda activity: activity == common.ACTIVITY_DATA))


def _findings(
    view: View, kind: "store.VerdictKind", is_meant: Callable[["common.Activity"], bool]
) -> tuple[Finding, ...]:
    """Return the verdict on the ranks at the root that do what is meant, if there are any."""
    culprits = [rank for rank in hang.roots(view) if is_meant(view.activity(rank))]
    if not culprits:
        return ()
    message = _message(view, culprits[0])
    if len(culprits) == 2:
        message += f"; rank {culprits[1]} stands still on its own, too"
    elif len(culprits) > 2:
        message += f"; ranks {listed(culprits[1:])} stand still on their own, too"
    return (hang.hang_finding(view, kind, culprits, message),)


def _message(view: View, root: int) -> str:
    """Return one line on a rank that others wait for: what it does, who waits for it, and where."""
    message = f"rank {root} {_how(view, view.known_ranks[root])}"
    missed = next((call for call in view.wait_analysis.missed if call.rank == root), None)
    if missed is not None:
        call = f"{hang.call_name(view, missed)} {missed.seq} of group {hang.group_name(view, missed.group)}"
        waiters = missed.waiters
        who = f"rank {waiters[0]} waits" if len(waiters) == 1 else f"ranks {listed(waiters)} wait"
        elsewhere = f", {missed.elsewhere} elsewhere" if missed.elsewhere else ""
        message += f"; {who} for it in {call}{elsewhere}"
    return message


def _how(view: View, rank: store.RankState) -> str:
    if rank.life == store.LIFE_EXITED:
        return "ended while others still wait for it"
    if rank.left_training:
        return "has left training while others still wait for it"
    where = f"in {phase_name(rank.progress.phase)} of step {rank.progress.step}"
    stack = view.stacks.get(rank.rank)
    frame = f", at {stack.frame}" if stack is not None and stack.frame else ""
    return f"{hang.what_it_does(view, rank.rank)} {where}{frame}"
