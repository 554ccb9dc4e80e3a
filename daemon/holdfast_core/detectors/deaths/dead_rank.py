"""A rank has ended although the run continues: how, where, and whether it is the cause or a victim."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from holdfast_core.detectors.deaths import death, failed_start
from holdfast_core.detectors.deaths.aborted_call import aborted_call, names_are_in
from holdfast_core.detectors.deaths.early_leave import early_leavers, has_left_out_calls
from holdfast_core.detectors.deaths.late_exit import is_training_over
from holdfast_core.detectors.deaths.peer_loss import named_absent
from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.view import View
from holdfast_core.diagnosis.hosts.wait_graph import analyse
from holdfast_core.world import is_stopped
from holdfast_proto.v1 import store_pb2 as store

SETTLE_S = 0.3
"""One death makes its peers fail within milliseconds. If a rank ended with an exception of torch, or a watchdog aborted
it, it may be a victim: wait for the exits of the others."""

UNEXPLAINED_PATIENCE_S = 1.0
"""Ranks that have all lost a peer do not say which. If nobody has reported how that peer ended, its agent needs a
moment to find that the process is gone."""

LOST_PEER_PATIENCE_S = 5.0
"""Ranks that have all lost a peer may have lost it with its node. That shows when the lease of the node has run out."""


@dataclass(frozen=True)
class DeadRank(Detector):
    """Names the ranks whose end explains the others'."""

    name: ClassVar[str] = "dead_rank"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge as soon as the cause can be separated from the cascade."""
        verdict = failed_start.launcher_verdict(view) or _verdict(view)
        if verdict is None:
            return DetectorResult(self)
        first = verdict.death.ends[0].rank if verdict.death.ends else verdict.culprits[0]
        ended_unix_s = view.ranks[first].exit.exited_unix_s or view.now
        return DetectorResult(self, (Finding(verdict=verdict, last_progress_unix_s=min(view.now, ended_unix_s)),))


def _verdict(view: View) -> store.Verdict | None:
    exits = {number: rank.exit for number, rank in view.world.ended.items()}
    if is_training_over(view.world, view.world_size):
        return None  # a rank that fails now, while process groups are destroyed, undoes no step
    if all(death.is_clean(ended) for ended in exits.values()):
        exits = early_leavers(view)
    if not exits:
        return None
    if failed_start.may_be_hopeless(view, exits):
        return failed_start.verdict(view, exits)
    culprits = death.first_cause(exits)
    first = exits[culprits[0]]
    ends = [death.end_of(number, exits[number]) for number in culprits]
    if death.is_configuration_error(first):
        return store.Verdict(
            kind=store.VERDICT_KIND_BAD_CONFIGURATION,
            culprits=culprits,
            confidence_ratio=1.0,
            death=store.DeathDetail(ends=ends),
        )
    if not _has_settled(view, first, len(exits)) or _is_mismatch(view, first):
        return None
    awaited = _awaited(view, exits) if death.lost_peer(first) else []
    stopped = [] if awaited else _stopped(view, culprits)
    return store.Verdict(
        kind=store.VERDICT_KIND_DEAD_RANK,
        culprits=awaited or [*culprits, *(rank.rank for rank in stopped)],
        confidence_ratio=_confidence(first),
        step=first.step,
        phase=first.phase,
        death=store.DeathDetail(
            ends=ends, stopped=stopped, awaited=[hang.held_rank(view, number) for number in awaited]
        ),
    )


def _confidence(first: store.RankExit) -> float:
    if death.left_no_message(first) or death.was_aborted_for_a_size(first):
        return 0.5  # a peer may have called with the wrong size, and nobody has named the call
    return 1.0 if first.HasField("signal") else 0.9


def _awaited(view: View, exits: Mapping[int, store.RankExit]) -> list[int]:
    """Return the ranks for which those that ended have waited in vain. They live, and held the others up.

    Before the first call no counter shows them: then it is those that the last words name, or all that have not ended.
    """
    alive = {number for number, rank in view.ranks.items() if not (rank.HasField("exit") or rank.left_training)}
    if not alive or view.missing_nodes or view.all_stopped:
        return []
    named = {number for ended in exits.values() for number in named_absent(ended.last_words)}
    in_calls = alive & set(analyse({number: _before_its_end(rank) for number, rank in view.ranks.items()}).roots)
    if in_calls or any(ended.step >= 0 for ended in exits.values()):
        return sorted(in_calls or alive & named)
    return sorted(alive & named or alive)


def _before_its_end(rank: store.RankState) -> store.RankState:
    """Return a rank as it was when it still waited in its last call."""
    alive = store.RankState()
    alive.CopyFrom(rank)
    if alive.HasField("exit"):
        alive.ClearField("exit")
        alive.life = store.LIFE_RUNNING
    return alive


def _stopped(view: View, culprits: Collection[int]) -> list[store.HeldRank]:
    """Return the ranks that a signal has stopped: no death of a peer does that, so it is a fault of its own.

    If all that are alive are stopped, somebody has paused the whole run.
    """
    if view.all_stopped:
        return []
    stopped = [number for number, rank in sorted(view.ranks.items()) if is_stopped(rank) and number not in culprits]
    return [hang.held_rank(view, number) for number in stopped]


def _has_settled(view: View, first: store.RankExit, exits: int) -> bool:
    since_s = view.now - view.first_exit_unix_s
    if death.lost_peer(first) and len(set(view.node_of.values())) > 1:
        return since_s >= LOST_PEER_PATIENCE_S
    if death.lost_peer(first):
        return exits == view.world_size or since_s >= UNEXPLAINED_PATIENCE_S
    if death.was_aborted_for_a_size(first):
        return names_are_in(view)
    return death.speaks_for_itself(first) or exits == view.world_size or since_s >= SETTLE_S


def _is_mismatch(view: View, first: store.RankExit) -> bool:
    """Whether the last calls of the others explain more than this exit: see mismatched_order.py."""
    if death.is_clean(first):
        return has_left_out_calls(view)
    return death.was_aborted_for_a_size(first) and (view.mismatched_call is not None or aborted_call(view) is not None)
