"""How a rank is, in one word: the map, the list of runs and the page of a rank all ask here."""

from dataclasses import dataclass

from holdfast_daemon.core.deadlines import Deadlines
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.model import CoreState
from holdfast_daemon.core.restart_patience import MARKED, RestartPatience
from holdfast_daemon.core.signs import is_at_work
from holdfast_proto.v1 import store_pb2 as store

STALLED_S = 1.0
"""Shortest time without progress after which a rank is shown as stalled."""
_DEADLINE_SHARE = 0.5
"""Share of the learned deadline after which it is: long steps are no stalls."""

HEALTH = ("ok", "starting", "waiting", "stalled", "culprit", "exited", "left")
"""Words of a rank's health, in the order of their numbers."""
OK, STARTING, WAITING, STALLED, CULPRIT, EXITED, LEFT = range(len(HEALTH))


@dataclass(frozen=True)
class StallRule:
    """Decides which ranks of one run are shown as stalled."""

    deadlines: Deadlines
    patience: RestartPatience

    @classmethod
    def of(cls, state: CoreState) -> "StallRule":
        """Return the rule of a run, as far as the run's own timings have taught it."""
        return cls(state.deadlines, RestartPatience.of(state.spec, state.record))

    def is_stalled(self, rank: store.RankState) -> bool:
        """Whether a rank has made no progress for long, by the deadline of the phase that it is in.

        An evaluation or a save that the script has marked has its whole deadline. After that, a rank that visibly works
        is no stall for as long as the core does not report it either.
        """
        if rank.stalled_s <= STALLED_S:
            return False
        deadline_s = self.deadlines.deadline_s(rank.progress.phase, rank.steps_done)
        if rank.progress.phase not in MARKED:
            return rank.stalled_s > _DEADLINE_SHARE * deadline_s
        return rank.stalled_s > deadline_s and not self._is_at_work(rank)

    def _is_at_work(self, rank: store.RankState) -> bool:
        view = View(
            now=0.0,
            world_size=1,
            ranks={rank.rank: rank},
            node_of={},
            missing_nodes={},
            deadlines=self.deadlines,
            first_exit_unix_s=0.0,
            stacks={},
        )
        verdict = store.Verdict(kind=store.VERDICT_KIND_HUNG_COLLECTIVE, culprits=[rank.rank])
        return is_at_work(view, verdict, self.patience)


def waits(rank: store.RankState) -> bool:
    """Whether a call with other ranks is pending."""
    progress = rank.progress
    groups = (*progress.groups, *progress.device_groups)
    return (
        bool(rank.pending)
        or any(group.enqueued > group.completed for group in groups)
        or any(channel.enqueued > channel.completed for channel in progress.channels)
    )
