"""The ranks of a run as rows of plain values: read once, and shared by all pages.

Reading messages is most of what a page of many ranks costs. A node whose state is the same object as before is not read
again, and the table is not read more often than its cost allows.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from holdfast_daemon.console.ranks.rank_health import (
    CULPRIT,
    EXITED,
    LEFT,
    OK,
    STALLED,
    STARTING,
    WAITING,
    StallRule,
    waits,
)
from holdfast_daemon.core.attention import open_incident
from holdfast_daemon.core.model import CoreState
from holdfast_daemon.core.recovery.restore_point import newest_common_snapshot
from holdfast_daemon.core.restart_patience import MARKED
from holdfast_proto.v1 import store_pb2 as store

LEAST_PAUSE_S = 0.5
"""Shortest time between two looks at the ranks."""
COST_RATIO = 75.0
"""A look that took 10 ms is repeated after 0.75 s at the earliest."""


class Row(NamedTuple):
    """One rank."""

    rank: int
    node: str
    life: int
    step: int
    phase: int
    stalled_s: float
    is_stalled: bool
    """Whether it has made no progress for too long, by the deadline of its phase when its node was read."""
    is_stopped: bool
    left: bool
    waits: bool
    """Whether a call with other ranks is pending. Only of stalled ranks; of the others False."""
    ended_well: bool
    memory_bytes: int
    memory_limit_bytes: int
    planned_steps: int


@dataclass(frozen=True)
class RankTable:
    """All ranks of one generation that are known, by number, and how they are."""

    rows: Mapping[int, Row]
    health: Mapping[int, int]
    """Rank -> index into HEALTH."""
    size: int
    """Number of ranks, also of those that nothing is known of."""
    newest_step: int
    """Step that the foremost rank works on; -1: none has begun one."""
    steps_until: int
    """Number after the last step that the ranks' loops are to do; 0: no rank has said it."""
    state: CoreState
    """State from which the table was read."""

    @cached_property
    def newest_snapshot(self) -> int:
        """Newest step of which all ranks hold a snapshot; -1: none."""
        return newest_common_snapshot(self.state.members, self.state.world_size)

    @cached_property
    def pausing(self) -> list[int]:
        """Ranks in an evaluation or a save that the script has marked, within its time. Others may wait for them."""
        return [
            number
            for number, row in self.rows.items()
            if row.phase in MARKED and row.life == store.LIFE_RUNNING and self.health[number] == OK
        ]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of ranks by state. Stalled ranks run, too. Ranks that wait for a marked pause are not stalled."""
        found = list(self.health.values())
        stalled = (STALLED,) if self.pausing else (WAITING, STALLED)
        alive = [row for row in self.rows.values() if row.life != store.LIFE_EXITED]
        return {
            "starting": sum(row.life == store.LIFE_STARTING for row in alive),
            "running": sum(row.life == store.LIFE_RUNNING for row in alive),
            "exited": len(self.rows) - len(alive),
            "stalled": sum(found.count(kind) for kind in stalled)
            + sum(self.health[row.rank] == CULPRIT and row.is_stalled for row in alive),
        }


class RankReader:
    """Reads the table of one run."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[store.NodeState, list[Row]]] = {}
        self._table: RankTable | None = None
        self._seen: CoreState | None = None
        self._look_again_s = 0.0

    def table(self, state: CoreState) -> RankTable:
        """Return the ranks, which may be as old as the pause that their number asks for."""
        now_s = time.monotonic()
        if self._table is not None and (state is self._seen or now_s < self._look_again_s):
            return self._table
        begun_s = time.thread_time()
        self._table, self._seen = self._read(state), state
        cost_s = time.thread_time() - begun_s
        self._look_again_s = now_s + max(LEAST_PAUSE_S, COST_RATIO * cost_s)
        return self._table

    def _read(self, state: CoreState) -> RankTable:
        generation = state.record.generation
        rule = StallRule.of(state)
        known: dict[str, tuple[store.NodeState, list[Row]]] = {}
        rows: dict[int, Row] = {}
        for name, node in state.nodes.items():
            if node.generation != generation:
                continue
            held = self._rows.get(name)
            known[name] = held if held is not None and held[0] is node else (node, _rows(name, node, rule))
            rows.update((row.rank, row) for row in known[name][1])
        self._rows = known
        culprits = _culprits(state)
        health = {number: _health(row, culprits) for number, row in rows.items()}
        size = max(state.world_size, max(rows, default=-1) + 1)
        return RankTable(
            rows,
            health,
            size,
            newest_step=max((row.step for row in rows.values()), default=-1),
            steps_until=max((row.planned_steps for row in rows.values()), default=0),
            state=state,
        )


def _culprits(state: CoreState) -> frozenset[int]:
    incident = open_incident(state)
    return frozenset() if incident is None else frozenset(incident.verdict.culprits)


def _rows(name: str, node: store.NodeState, rule: StallRule) -> list[Row]:
    rows = []
    for rank in node.ranks:
        progress, memory, is_stalled = rank.progress, rank.memory, rule.is_stalled(rank)
        has_exit = rank.HasField("exit")
        rows.append(
            Row(
                rank.rank,
                name,
                rank.life,
                rank.exit.step if has_exit else progress.step,
                rank.exit.phase if has_exit else progress.phase,
                rank.stalled_s,
                is_stalled,
                rank.process_state in ("T", "t"),
                rank.left_training,
                is_stalled and waits(rank),
                has_exit and rank.exit.HasField("code") and rank.exit.code == 0,
                memory.allocated_bytes,
                memory.limit_bytes,
                rank.planned_steps,
            )
        )
    return rows


def _health(row: Row, culprits: frozenset[int]) -> int:
    if row.rank in culprits:
        return CULPRIT
    if row.life == store.LIFE_EXITED:
        return LEFT if row.ended_well else EXITED
    if row.life == store.LIFE_STARTING:
        return STARTING
    if row.left:
        return LEFT
    if row.is_stalled or row.is_stopped:
        return WAITING if row.waits and not row.is_stopped else STALLED
    return OK
