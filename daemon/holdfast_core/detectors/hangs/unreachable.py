"""Ranks of several nodes do not meet in init: the cause is the link between the nodes, and no rank.

Before the first call there is no group to judge by. What is left is what ranks say that could not connect, and the
stacks of those that wait.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from holdfast_core.detectors.deaths import death
from holdfast_core.detectors.deaths.raised import exception_line
from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.view import OUTSIDE, View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_NOT_CONNECTED = re.compile(r"DistNetworkError: The client socket has (?:timed out|failed to connect)")
"""Of torch's TCPStore, in which the ranks of a generation meet: the node of rank 0 has it."""


@dataclass(frozen=True)
class Unreachable(Detector):
    """Names the nodes that do not reach each other."""

    name: ClassVar[str] = "unreachable"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge as soon as ranks say it; else once all have stalled past the deadline of a start."""
        if view.missing_nodes or view.world.untrained < len(view.ranks) or len(set(view.node_of.values())) < 2:
            return DetectorResult(self)
        finding = _said(view) if view.world.ended else _shown(view)
        return DetectorResult(self, (finding,) if finding is not None else ())


def _said(view: View) -> Finding | None:
    """Return the verdict if the ends of all ranks are explained by some that could not connect to another node."""
    exits = {number: rank.exit for number, rank in view.world.ended.items()}
    first = death.first_cause({number: ended for number, ended in exits.items() if not death.is_clean(ended)})
    cut_off = [number for number in first if _NOT_CONNECTED.search(exits[number].last_words)]
    nodes = {view.node_of[number] for number in cut_off}
    if not cut_off or not death.lost_peer(exits[first[0]]) or view.node_of.get(0) in nodes:
        return None
    ended = exits[cut_off[0]]
    detail = store.TransportDetail(
        form=store.TRANSPORT_FORM_NO_CONNECTION,
        nodes=sorted(nodes),
        meeting_node=view.node_of.get(0, ""),
        said=exception_line(ended.last_words),
    )
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_TRANSPORT, confidence_ratio=0.9, step=ended.step, phase=ended.phase, transport=detail
    )
    return Finding(verdict=verdict, last_progress_unix_s=min(view.now, ended.exited_unix_s))


def _shown(view: View) -> Finding | None:
    """Return the verdict if all ranks stand still, and all that are known of wait in torch.distributed for others."""
    analysis = view.wait_analysis
    calls_are_known = analysis.roots or analysis.cycle or analysis.everyone_arrived
    if len(view.late) < view.world_size or calls_are_known or any(view.activity(rank) in OUTSIDE for rank in view.late):
        return None
    waits = {number for number, stack in view.stacks.items() if stack.activity == common.ACTIVITY_COLLECTIVE}
    nodes = {view.node_of[number] for number in waits & view.late.keys()}
    if len(nodes) < 2 or waits != view.stacks.keys():
        return None
    detail = store.TransportDetail(
        form=store.TRANSPORT_FORM_NO_MEETING, nodes=sorted(nodes), unseen_ranks=view.world_size - len(waits)
    )
    return hang.hang_finding(view, store.Verdict(kind=store.VERDICT_KIND_TRANSPORT, transport=detail))
