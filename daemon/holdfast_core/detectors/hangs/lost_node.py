"""A node is gone: its agent's lease has run out, and its ranks' peers have lost them.

An agent that died alone does no harm: its ranks continue to train, and no rank waits for them. But if the next agent
cannot adopt them, because their record is lost, it ends them and says that it has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from holdfast_core.detectors.deaths import death
from holdfast_core.detectors.framework import Detector, DetectorResult, Ending, Finding
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.view import MissingNode, View
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class Named:
    """A node that was called lost, and may turn out not to be."""

    ranks: tuple[int, ...]
    step: int
    """Step that later steps of the ranks are compared with."""
    since_unix_s: float
    """Unix time after which those steps count."""


@dataclass(frozen=True)
class LostNode(Detector):
    """Names the node and its ranks."""

    name: ClassVar[str] = "lost_node"
    _named: Mapping[str, Named] = field(default_factory=dict)
    """By node."""

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once the lease is gone and other nodes' ranks have lost a peer, or wait for ranks of the node.

        An agent that says itself that it has none of its ranks is believed immediately.
        At that moment, all ranks may stand still for another reason. So a report without a restart ends once ranks have
        trained steps that need those of the node, or once ranks of another node are seen to hold the run up. That its
        agent is back says nothing about its ranks.
        """
        roots = hang.roots(view)
        over = {name: what for name, named in self._named.items() if (what := _end(view, name, named, roots))}
        endings = tuple(
            Ending(store.VERDICT_KIND_LOST_NODE, what, self._named[name].ranks) for name, what in sorted(over.items())
        )
        kept = self if not over else LostNode({name: self._named[name] for name in self._named.keys() - over.keys()})
        for name, lost in sorted(view.missing_nodes.items(), key=lambda item: (not item[1].has_none, item[0])):
            ranks = sorted(rank.rank for rank in lost.state.ranks)
            if ranks and (lost.has_none or (not roots and _has_lost_its_peers(view, ranks))):
                named = {name: _named_now(view, lost), **kept._named}
                return DetectorResult(LostNode(named), (_finding(view, name, ranks),), endings=endings)
        return DetectorResult(kept, endings=endings)

    def restarted(self, _after_step: int) -> "LostNode":
        """Forget the nodes: a new generation has others."""
        return LostNode()


def _end(view: View, node: str, named: Named, roots: list[int]) -> str:
    """Return why the report of a node is over; "" if it is not."""
    if _train_on(view, named):
        return f"the ranks of node {node} train on: steps that need them were done after its agent had gone"
    if roots and not set(roots) & set(named.ranks):
        return f"rank {roots[0]} of node {view.node_of[roots[0]]} holds the run up, and not node {node}"
    return ""


def _named_now(view: View, lost: MissingNode) -> Named:
    """Return a node as it is called lost: what ranks did before this moment must not end the report."""
    before = _named(lost)
    steps = [rank.progress.step for rank in view.ranks.values()]
    return replace(before, step=max([before.step, *steps]))


def _named(lost: MissingNode) -> Named:
    ranks = tuple(sorted(rank.rank for rank in lost.state.ranks))
    return Named(ranks, max(rank.progress.step for rank in lost.state.ranks), lost.since_unix_s)


def _peers_are_lost(view: View) -> bool:
    return any(death.lost_peer(rank.exit) for rank in view.world.ended.values())


def _has_lost_its_peers(view: View, ranks: list[int]) -> bool:
    """Return whether ranks of other nodes have lost a peer, or wait for ranks of the missing node."""
    return _peers_are_lost(view) or (bool(view.late) and _is_waited_for(view, ranks))


def _is_waited_for(view: View, ranks: list[int]) -> bool:
    if len(view.late) == len(view.ranks):
        return True
    return not set(view.wait_analysis.roots).isdisjoint(ranks)


def _finding(view: View, node: str, ranks: list[int]) -> Finding:
    lost = view.missing_nodes[node]
    first = lost.state.ranks[0]
    trained_on = not lost.has_none and _trained_on(view, lost)
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_LOST_NODE,
        culprits=ranks,
        node=node,
        lost_node=store.LostNodeDetail(node=node, ranks=ranks, trained_on=trained_on, has_none=lost.has_none),
        confidence_ratio=0.5 if trained_on else 1.0,
        waits=hang.kept_waits(view.wait_analysis.edges, ranks),
        waiting_ranks=view.wait_analysis.waiting,
        step=first.progress.step,
        phase=first.progress.phase,
    )
    return Finding(verdict=verdict, last_progress_unix_s=lost.state.reported_unix_s)


def _trained_on(view: View, lost: MissingNode) -> bool:
    """Return whether the ranks of a node live on without its agent."""
    return _train_on(view, _named(lost))


def _train_on(view: View, named: Named) -> bool:
    """Return whether ranks have trained steps that need all ranks since a node is missing.

    Others may have been one step ahead when its agent reported last, and that report may be as old as the lease.
    """
    if _peers_are_lost(view):
        return False
    return any(
        rank.progress.step >= named.step + 2 and view.now - rank.stalled_s > named.since_unix_s
        for rank in view.ranks.values()
    )
