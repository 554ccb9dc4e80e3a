"""A node is gone: its agent's lease has run out, and its ranks' peers have lost them.

An agent that died alone does no harm: its ranks continue to train, and no rank waits for them.
"""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.deaths import death
from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class LostNode(Detector):
    """Names the node and its ranks."""

    name: ClassVar[str] = "lost_node"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once the lease is gone and other nodes' ranks have lost a peer, or wait for ranks of the node."""
        if not view.missing_nodes or not (_peers_are_lost(view) or view.late) or hang.roots(view):
            return DetectorResult(self)
        for name, lost in sorted(view.missing_nodes.items()):
            ranks = sorted(rank.rank for rank in lost.state.ranks)
            if ranks and (_peers_are_lost(view) or _is_waited_for(view, ranks)):
                return DetectorResult(self, (_finding(view, name, ranks),))
        return DetectorResult(self)


def _peers_are_lost(view: View) -> bool:
    return any(rank.HasField("exit") and death.lost_peer(rank.exit) for rank in view.ranks.values())


def _is_waited_for(view: View, ranks: list[int]) -> bool:
    if len(view.late) == len(view.ranks):
        return True
    return not set(view.wait_analysis.roots).isdisjoint(ranks)


def _finding(view: View, node: str, ranks: list[int]) -> Finding:
    lost = view.missing_nodes[node]
    first = lost.state.ranks[0]
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_LOST_NODE,
        culprits=ranks,
        node=node,
        lost_node=store.LostNodeDetail(node=node, ranks=ranks),
        confidence_ratio=1.0,
        waits=view.wait_analysis.edges,
        step=first.progress.step,
        phase=first.progress.phase,
    )
    return Finding(verdict=verdict, last_progress_unix_s=lost.state.reported_unix_s)
