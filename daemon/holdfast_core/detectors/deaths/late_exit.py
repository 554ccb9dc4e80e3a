"""A rank has left training, and its process does not end: it hangs in its exit, or uploads what it has.

A hang in an exit does not hold up training: the run has its result with its last step.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast_core.detectors.deaths import death
from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.view import View
from holdfast_core.recovery.restart_patience import MARKED
from holdfast_core.world import World
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

REPORT_S = 40.0
"""After the last rank has left training. A process group's end and an upload of the logs take less."""


@dataclass(frozen=True)
class LateExit(Detector):
    """Names the ranks whose processes are left, once."""

    name: ClassVar[str] = "late_exit"
    since_unix_s: float = 0.0
    """When all ranks had left training; 0: not yet."""
    is_reported: bool = False

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once all ranks have left training for a while."""
        if not is_training_over(view.world, view.world_size):
            return DetectorResult(replace(self, since_unix_s=0.0))
        since = replace(self, since_unix_s=self.since_unix_s or view.now)
        left = [number for number, rank in sorted(view.ranks.items()) if not (rank.HasField("exit") or _works(rank))]
        if not left or self.is_reported or view.now - since.since_unix_s < REPORT_S:
            return DetectorResult(since)
        return DetectorResult(replace(since, is_reported=True), (_finding(view, left, since.since_unix_s),))

    def restarted(self, _after_step: int) -> Self:
        """Forget the ranks of the generation before."""
        return type(self)()


def _works(rank: store.RankState) -> bool:
    """Whether a rank evaluates or saves after its last step: that may take its time while something moves."""
    return rank.progress.phase in MARKED and rank.still_s < REPORT_S


def is_training_over(ranks: World, world_size: int) -> bool:
    """Whether every rank has done its last step, and is gone or about to go.

    A rank that still has its hooks counts when others have left and it has come as far as they: its loop is over, or it
    evaluates or saves in the last step. And it is in no call that the hooks know of.
    """
    if len(ranks) < world_size:
        return False
    left = [rank for rank in (*ranks.ended.values(), *ranks.left.values()) if _has_left(rank)]
    if not left:
        return False
    last_step = max(rank.exit.step if rank.HasField("exit") else rank.progress.step for rank in left)
    return all(_has_left(rank) or _has_ended_its_loop(rank, last_step) for rank in ranks.values())


def _has_left(rank: store.RankState) -> bool:
    if rank.HasField("exit"):
        return rank.exit.finished or (death.is_clean(rank.exit) and rank.exit.phase == common.PHASE_IDLE)
    return rank.left_training


def _has_ended_its_loop(rank: store.RankState, last_step: int) -> bool:
    if rank.HasField("exit") or rank.progress.phase not in (common.PHASE_IDLE, *MARKED):
        return False
    return rank.progress.step >= last_step and all(g.enqueued == g.completed for g in rank.progress.groups)


def _finding(view: View, left: list[int], since_unix_s: float) -> Finding:
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_LATE_EXIT,
        culprits=left,
        confidence_ratio=1.0,
        step=view.ranks[left[0]].progress.step,
        phase=view.ranks[left[0]].progress.phase,
        activity=view.activity(left[0]),
        late_exit=store.LateExitDetail(since_s=view.now - since_unix_s),
    )
    return Finding(verdict=verdict, last_progress_unix_s=since_unix_s, stands_still=True)
