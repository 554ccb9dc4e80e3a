"""How a rank is, in one word: every view and every metric asks here, so that all say the same at one moment."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors.view import View
from holdfast_core.model import CoreState
from holdfast_core.recovery.restart_patience import MARKED, RestartPatience
from holdfast_core.recovery.signs import is_at_work
from holdfast_core.world import NodePart, parts_of
from holdfast_proto.v1 import store_pb2 as store

STALLED_S = 1.0
"""Shortest time without progress after which a rank is shown as stalled, and as no longer moving."""
_DEADLINE_SHARE = 0.5
"""Share of the learned deadline after which it is: long steps are no stalls."""

_BEHIND_STEPS = 2
"""Steps behind the foremost rank from which a rank is odd. One step is the usual difference between reports."""
_BEHIND_S = 2.0
"""Time of usual steps that it must be behind, too: reports of short steps differ by several of them."""

_HALTED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""
_LIVES = {"starting": store.LIFE_STARTING, "running": store.LIFE_RUNNING, "exited": store.LIFE_EXITED}

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

    def health_of(self, rank: store.RankState) -> int:
        """Return the health of a rank: OK, STARTING, WAITING, STALLED, EXITED or LEFT."""
        health = self._health_alone(rank)
        return WAITING if health == STALLED and rank.process_state not in _HALTED and waits(rank) else health

    def counts(self, parts: Collection[NodePart]) -> dict[str, int]:
        """Return the number of ranks of these nodes by state, as :func:`health_counts` does.

        It looks at single ranks only of nodes with a stall, and asks only during a pause which of these merely wait.
        """
        calm = [part for part in parts if part.longest_stall_s <= STALLED_S]
        ranks = [rank for part in parts if part.longest_stall_s > STALLED_S for rank in part.ranks.values()]
        judged = [(rank, self._health_alone(rank)) for rank in ranks]
        is_pausing = any(not part.phases.isdisjoint(MARKED) for part in calm) or any(
            is_in_pause(rank.life, rank.progress.phase, health) for rank, health in judged if health == OK
        )
        stalled = [rank for rank, health in judged if health == STALLED]
        if is_pausing:
            stalled = [rank for rank in stalled if self.health_of(rank) == STALLED]
        lives = {life: sum(part.lives.get(life, 0) for part in parts) for life in _LIVES.values()}
        counted = {name: lives[life] for name, life in _LIVES.items()}
        return {**counted, "stalled": len(stalled) + sum(part.halted for part in calm)}

    def _health_alone(self, rank: store.RankState) -> int:
        """Return the health of a rank, and STALLED also for one that waits for others."""
        if rank.life == store.LIFE_EXITED:
            has_ended_well = rank.HasField("exit") and rank.exit.HasField("code") and rank.exit.code == 0
            return LEFT if has_ended_well else EXITED
        if rank.life == store.LIFE_STARTING:
            return STARTING
        if rank.left_training:
            return LEFT
        return STALLED if rank.process_state in _HALTED or self.is_stalled(rank) else OK

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


def health_counts(ranks: Collection[tuple[int, int, int]]) -> dict[str, int]:
    """Return the number of ranks by state. ``ranks``: life, phase and own health of each.

    Stalled ranks run, too. Ranks that wait for a pause that the script has marked are not stalled.
    """
    lives, healths = Counter(life for life, _, _ in ranks), Counter(health for _, _, health in ranks)
    is_pausing = any(is_in_pause(*rank) for rank in ranks)
    counted = {name: lives[life] for name, life in _LIVES.items()}
    return {**counted, "stalled": healths[STALLED] + (0 if is_pausing else healths[WAITING])}


def present_parts(state: CoreState) -> Collection[NodePart]:
    """Return the nodes of the present generation, as they were read when their states were new."""
    generation = state.record.generation
    present = {name: node for name, node in state.nodes.items() if node.generation == generation}
    return parts_of(present, state.parts).values()


def is_in_pause(life: int, phase: int, health: int) -> bool:
    """Return whether a rank is in an evaluation or a save that the script has marked, within its time."""
    return phase in MARKED and life == store.LIFE_RUNNING and health == OK


def is_behind(health: int, step: int, newest_step: int, median_step_s: float | None) -> bool:
    """Return whether a healthy rank is behind the foremost one, by more than reports of healthy ranks differ."""
    steps = newest_step - step
    return health == OK and steps >= _BEHIND_STEPS and steps * (median_step_s or 0.0) >= _BEHIND_S


def waits(rank: store.RankState) -> bool:
    """Whether a call with other ranks is pending."""
    progress = rank.progress
    groups = (*progress.groups, *progress.device_groups)
    return (
        bool(rank.pending)
        or any(group.enqueued > group.completed for group in groups)
        or any(channel.enqueued > channel.completed for channel in progress.channels)
    )
