"""The ranks of a run as rows of plain values: read once, and shared by all pages.

Reading messages is most of what a page of many ranks costs. A node whose state is the same object as before is not read
again, and the table is not read more often than its cost allows.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from holdfast_core.checkpointing.restore_point import newest_common_snapshot
from holdfast_core.model import CoreState
from holdfast_core.reading.rank_health import CULPRIT, OK, StallRule, health_counts, is_behind, is_in_pause
from holdfast_daemon.control.listed_ranks import culprits_of, is_halted, is_killed, shows_exit, slow_ranks_of
from holdfast_daemon.control.rank_pages import Oddity, RankFacts, odd_kinds, oddity_of
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
    health: int
    """Index into HEALTH when its node was read, without regard to incidents."""
    memory_bytes: int
    memory_limit_bytes: int
    planned_steps: int
    is_halted: bool
    has_exit: bool
    is_killed: bool
    message: store.RankState
    """What the agent reports. Reading a field costs time: rows are made of those that all pages need."""


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
        return [number for number, row in self.rows.items() if is_in_pause(row.life, row.phase, self.health[number])]

    @cached_property
    def oddities(self) -> dict[int, Oddity]:
        """How each rank differs from the others."""
        culprits, slow, state = culprits_of(self.state), slow_ranks_of(self.state), self.state
        found = {}
        for number, row in self.rows.items():
            if row.health == OK and row.step == self.newest_step and number not in culprits and number not in slow:
                found[number] = Oddity.RUNNING  # most ranks of most runs
                continue
            found[number] = oddity_of(
                row.health,
                shows_exit=row.has_exit and shows_exit(state, number, is_killed=row.is_killed),
                is_halted=row.is_halted,
                is_culprit=number in culprits,
                is_behind=self.is_behind(number),
                is_slow=number in slow,
            )
        return found

    @cached_property
    def totals(self) -> dict[Oddity, int]:
        """Number of ranks by oddity, the oddest first."""
        return dict(sorted(Counter(self.oddities.values()).items()))

    def facts(self, kinds: Collection[Oddity]) -> list[RankFacts]:
        """Return what order and search need to know of the ranks of some oddities, by number."""
        culprits = culprits_of(self.state)
        found = []
        for number in sorted(number for number, oddity in self.oddities.items() if oddity in kinds):
            row, oddity = self.rows[number], self.oddities[number]
            about = (row.node, row.step, row.stalled_s, row.memory_bytes, row.phase, row.message.coordinates)
            found.append(RankFacts(oddity, number, *about, number in culprits))
        return found

    @cached_property
    def odd(self) -> frozenset[Oddity]:
        """Oddities that a person should look at."""
        return odd_kinds(self.totals, is_explained=bool(self.pausing or culprits_of(self.state)))

    def is_behind(self, number: int) -> bool:
        """Return whether a rank is behind the foremost one."""
        step_s = self.state.deadlines.median_step_s
        return is_behind(self.health[number], self.rows[number].step, self.newest_step, step_s)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of ranks by state: see :func:`health_counts`."""
        return health_counts([(row.life, row.phase, row.health) for row in self.rows.values()])


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
        culprits = culprits_of(state)
        health = {number: CULPRIT if number in culprits else row.health for number, row in rows.items()}
        size = max(state.world_size, max(rows, default=-1) + 1)
        return RankTable(
            rows,
            health,
            size,
            newest_step=max((row.step for row in rows.values()), default=-1),
            steps_until=max((row.planned_steps for row in rows.values()), default=0),
            state=state,
        )


def _rows(name: str, node: store.NodeState, rule: StallRule) -> list[Row]:
    rows = []
    for rank in node.ranks:
        progress, memory = rank.progress, rank.memory
        has_exit = rank.HasField("exit")
        rows.append(
            Row(
                rank.rank,
                name,
                rank.life,
                rank.exit.step if has_exit else progress.step,
                rank.exit.phase if has_exit else progress.phase,
                rank.stalled_s,
                rule.health_of(rank),
                memory.allocated_bytes,
                memory.limit_bytes,
                rank.planned_steps,
                is_halted(rank),
                has_exit,
                has_exit and is_killed(rank),
                rank,
            )
        )
    return rows
