"""Looks at ranks that make no progress: where they are, by their black boxes, and what they wait for."""

import asyncio
import errno
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast_agent.blocking.blocked_thread import look_at_rank
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import STALLED_AFTER_S, Rank
from holdfast_base.threads import in_daemon_thread
from holdfast_proto import black_box
from holdfast_proto.black_box import Moment
from holdfast_proto.limits import LARGEST_COUNT
from holdfast_proto.v1.common_pb2 import BlockedOn
from holdfast_proto.vocabulary import PHASES

INTERVAL_S = 0.5
"""Shortest time between two looks at one rank."""

LARGEST_SHARE = 0.02
"""Largest share of a core that looking at one rank may take. If a look is expensive, the next one comes later."""

_CHECK_S = 0.1
_STOPPED = ("T", "t")


@dataclass(frozen=True)
class RankLook:
    """What one look at a rank has shown."""

    moment: Moment | None
    """None: it has no black box."""
    flaw: str
    """Why the black box cannot be used; empty: it can, or there is none."""
    blind: bool
    """Whether the agent could not open the black box because no descriptor is free."""
    blocked_on: BlockedOn | None
    cost_s: float
    """CPU time of the look."""


class StallWatch:
    """Keeps ``place`` and ``blocked_on`` of the ranks of a node up to date while they make no progress.

    A rank that is stopped, or whose interpreter is held, cannot report its newest step and phase. Its black box has
    them. The looks run in threads, because any file may block.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._looks: dict[int, asyncio.Task[None]] = {}
        """Pid -> look that has not ended."""
        self._next_s: dict[int, float] = {}
        """Pid -> earliest time of the next look."""

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                self._begin_looks()
                await asyncio.sleep(_CHECK_S)
        finally:
            for look in self._looks.values():
                look.cancel()

    def _begin_looks(self) -> None:
        ranks = {rank.pid: rank for rank in self._node.ranks.values()}
        self._looks = {pid: look for pid, look in self._looks.items() if not look.done()}
        self._next_s = {pid: next_s for pid, next_s in self._next_s.items() if pid in ranks}
        for pid, rank in ranks.items():
            if pid not in self._looks and self._is_due(rank):
                self._looks[pid] = asyncio.create_task(self._look(rank))

    def _is_due(self, rank: Rank) -> bool:
        # A stopped rank reports nothing more. If a peer dies now, the verdict is due before it has stalled for long.
        is_lost = rank.process_state in _STOPPED and rank.place is None
        is_stalled = rank.is_alive and not rank.finished and (is_lost or rank.stalled_s >= STALLED_AFTER_S)
        return is_stalled and not rank.held_for_stacks and self._node.clock_s >= self._next_s.get(rank.pid, 0.0)

    async def _look(self, rank: Rank) -> None:
        node, moves, began_s = self._node, rank.moves_total, self._node.clock_s
        box = node.options.black_box(rank.generation, rank.rank)
        pids = pids_of(node)
        self._next_s[rank.pid] = began_s + INTERVAL_S  # a look that fails is not repeated earlier
        with node.errors.contained("stalls"):
            look = await in_daemon_thread(lambda: _look_at(rank, box, pids))
            self._next_s[rank.pid] = began_s + max(INTERVAL_S, look.cost_s / LARGEST_SHARE)
            if look.flaw:
                node.errors.refuse("files", f"a black box: {look.flaw}")
            if rank.moves_total == moves and rank.is_alive and not rank.held_for_stacks:
                if look.blind and rank.channel.outbox is None:
                    # Without a free descriptor the rank can open no session, either: it may well train.
                    rank.moves()
                if look.moment is not None:
                    changed_unix_s = min(look.moment.changed_unix_ns / 1e9, time.time())
                    rank.see_place(look.moment.step, look.moment.phase, changed_unix_s)
                rank.blocked_on = look.blocked_on


def pids_of(node: Node) -> dict[int, int]:
    """Return pid -> number of the live ranks of a node."""
    return {rank.pid: rank.rank for rank in node.ranks.values() if rank.is_alive}


def _look_at(rank: Rank, box: Path, pids: dict[int, int]) -> RankLook:
    """Read both. Runs in a thread of its own, whose CPU time begins at 0."""
    moment, flaw, blind = None, "", False
    try:
        moment = black_box.read_moment(box)
    except FileNotFoundError:
        pass  # the rank has none, or not yet
    except (OSError, ValueError) as error:
        flaw = str(error)
        blind = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    if moment is not None and not (moment.phase in PHASES and -1 <= moment.step <= LARGEST_COUNT):
        moment, flaw = None, "step or phase are out of range"
    if moment is not None and moment.pid != rank.pid:
        moment = None  # it belongs to another process: a launcher has restarted the rank, or an earlier one left it
    is_cpu = rank.device.startswith("cpu")
    blocked = look_at_rank(rank.pid, pids, store_port=rank.store_port, computes_on_cpu=is_cpu)
    return RankLook(moment, flaw, blind, blocked.look(rank.thread_id), time.thread_time())
