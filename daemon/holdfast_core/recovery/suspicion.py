"""A run that seems to stand still: suspected first, confirmed or resolved later.

A suspicion is what would be a verdict if the deadlines were a little shorter. It is counted and not reported. Its
evidence is gathered while it is fresh, and the newest snapshot that all ranks hold is written as a checkpoint: a rank
that hangs takes no new one, but that one is still good.
"""

from collections import Counter
from dataclasses import replace

from holdfast_core.checkpointing import checkpoint_commands
from holdfast_core.detection import ask, view_of
from holdfast_core.detectors import registry
from holdfast_core.detectors.view import View
from holdfast_core.model import Suspicion, Totals, counted
from holdfast_core.recovery.evidence_ranks import chosen_ranks, nodes_to_ask, spread_over_nodes
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

PERSIST_EVERY_S = 60.0
"""Least pause between two checkpoints of snapshots: a suspicion may be wrong, and a checkpoint costs something."""

GATHER_EVERY_S = 10.0
"""Least pause between two rounds of stacks: taking one stops a rank for a moment."""

_STACKS = 4
_STACKS_IN_START = 16
"""Before the first step no counter shows who waits for whom, and no step is delayed by taking a stack."""


def watch(tick: Tick) -> None:
    """Raise a suspicion, or resolve it. A verdict of the detectors confirms it: see :func:`confirm`."""
    current = tick.state.suspicion
    suspected = _suspected(tick)
    if suspected is None:
        if current is not None:
            _resolve(tick, current)
        return
    if current is None:
        _raise(tick, suspected)
    _persist(tick)


def confirm(tick: Tick) -> str:
    """Return the id of the suspicion that a verdict confirms; empty: there was none."""
    current = tick.state.suspicion
    if current is None:
        return ""
    if not current.confirmed:
        totals = _counted(tick.state.totals, "confirmed")
        tick.state = replace(tick.state, suspicion=replace(current, confirmed=True), totals=totals)
    return current.id


def _suspected(tick: Tick) -> store.Verdict | None:
    view = view_of(tick, suspicious=True)
    if not view.late:
        return None
    return next((finding.verdict for kind in registry.HANGS for finding in ask(tick, kind.name, view)), None)


def _resolve(tick: Tick, current: Suspicion) -> None:
    if not current.confirmed:
        tick.state = replace(tick.state, totals=_counted(tick.state.totals, "resolved"))
    tick.state = replace(tick.state, suspicion=None, stacks={}, recorders={})


def _raise(tick: Tick, suspected: store.Verdict) -> None:
    state = tick.state
    totals = _counted(state.totals, "raised")
    # A leader that takes over counts from 0. The generation in the id keeps it apart from ids of earlier generations.
    suspicion = Suspicion(f"{tick.record.generation:04}-{totals.suspicions['raised']:04}")
    tick.state = replace(tick.state, suspicion=suspicion, totals=totals)
    if tick.now - state.gathered_unix_s < GATHER_EVERY_S:
        return
    tick.state = replace(tick.state, gathered_unix_s=tick.now)
    view = view_of(tick, suspicious=True)
    ranks = dict.fromkeys([*suspected.culprits, *(edge.waiter for edge in suspected.waits[:1])])
    # Without a culprit, the stacks of a few ranks show what all of them do.
    blamed = ranks or (_odd_first(view) if suspected.kind == store.VERDICT_KIND_STANDSTILL else [])
    most = _STACKS if ranks or any(rank.steps_done for rank in view.ranks.values()) else _STACKS_IN_START
    stack_ranks = spread_over_nodes(blamed, view.node_of)[:most]
    chosen = chosen_ranks(suspected, view, stack_ranks)
    message = store.GatherEvidence(
        suspicion=suspicion.id, stack_ranks=stack_ranks, file_ranks=chosen, flight_recorder=True
    )
    asked = _witness_of_nccl(tick, view)

    def command(node: str) -> store.NodeCommand:
        gather = store.NodeCommand(gather_evidence=message)
        if node == asked:
            pids = [view.ranks[rank].pid if rank in view.ranks else 0 for rank in range(tick.world_size)]
            gather.gather_evidence.ras_pids.extend(pids)
        return gather

    tick.send(nodes_to_ask(tick.record.nodes, view, chosen, recorders=True), command)


def _witness_of_nccl(tick: Tick, view: View) -> str:
    """Return the node whose agent asks NCCL's RAS; "": nobody does. One of them sees the whole job."""
    if tick.state.spec.ras_off:
        return ""
    on_nccl = (
        rank
        for rank, state in sorted(view.ranks.items())
        if state.life != store.LIFE_EXITED and any("nccl" in one.backend for one in state.recorders)
    )
    return next((view.node_of.get(rank, "") for rank in on_nccl), "")


def _odd_first(view: View) -> list[int]:
    """Return the ranks that stand still, those first whose threads wait in a way that is rare among them."""
    ways = {number: (rank.thread_state, rank.thread_syscall) for number, rank in view.late.items()}
    often = Counter(ways.values())
    return sorted(ways, key=lambda number: (often[ways[number]], number))


def _counted(totals: Totals, outcome: str) -> Totals:
    return replace(totals, suspicions=counted(totals.suspicions, outcome))


def _persist(tick: Tick) -> None:
    """Have the newest common snapshot written, if it is newer than all committed checkpoints."""
    if tick.now - tick.state.persisted_unix_s < PERSIST_EVERY_S or not _stands_still(tick):
        return
    if checkpoint_commands.persist_newest_snapshot(tick):
        tick.state = replace(tick.state, persisted_unix_s=tick.now)


def _stands_still(tick: Tick) -> bool:
    ranks = [rank for rank in tick.ranks.values() if rank.life != store.LIFE_EXITED]
    return bool(ranks) and len(view_of(tick, suspicious=True).late) == len(ranks)
