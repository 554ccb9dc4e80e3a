"""Watches the process trees of ranks without progress, about once a second, in threads next to the event loop."""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace

from holdfast_agent.movement.tree_movement import moved, sign_of_life
from holdfast_agent.movement.tree_reader import Machine, TreeReader, UnknownError
from holdfast_agent.movement.tree_sample import TreeSample
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank, TreeView
from holdfast_base.threads import in_daemon_thread

log = logging.getLogger(__name__)

WATCHED_AFTER_S = 0.5
"""Time without progress after which a rank is watched. A rank that has left training is always watched."""

INTERVAL_S = 1.0
LARGEST_SHARE = 0.1
"""Largest share of a core that an agent spends on reading one tree. A large tree is read less often."""

PATIENCE_S = 5.0
"""Time for reading one tree. A read may block for as long as one of the processes does."""

_CHECK_S = 0.1


class Stillness:
    """Measures how long nothing in a tree has moved. The clock counts only time in which this agent has run."""

    def __init__(self) -> None:
        self._before: TreeSample | None = None
        self._since: TreeSample | None = None
        self._since_s = 0.0
        self._signed_s = 0.0
        self._pauses = 0
        self._view = TreeView()

    def observe(self, sample: TreeSample, *, began_s: float, ended_s: float, pauses: int = 0) -> TreeView:
        """Take in a sample that was read between two moments; return the new view.

        Reading takes time. So a stillness counts from the end of the first sample to the beginning of the last one.
        ``pauses``: number of times so far that this agent itself has woken the threads.
        """
        # Only a sign after a still look shows that the script waits with pauses. A transfer wakes its thread all the
        # time and is a movement already; when it stops, nothing says that it tries again.
        before = self._before if self._before is not self._since and pauses == self._pauses else None
        sign = sign_of_life(before, sample) if before is not None else ""
        self._signed_s, self._pauses = began_s if sign else self._signed_s, pauses
        move = moved(self._before, sample, since=self._since) if self._before is not None else ""
        if self._before is None or move or sample.traced:
            self._since, self._since_s = sample, ended_s
        self._before = sample
        self._view = TreeView(
            still_s=max(0.0, began_s - self._since_s),
            moved=move or self._view.moved,
            traced=sample.traced,
            workers=sample.workers,
            lost_worker=sample.lost_worker,
            sign_of_life=sign or self._view.sign_of_life,
            sign_age_s=max(0.0, began_s - self._signed_s) if sign or self._view.sign_of_life else 0.0,
        )
        return self._view

    def lose_sight(self) -> TreeView:
        """Forget the samples, after one could not be read; return the view, in which the tree is no longer still."""
        self._before = self._since = None
        self._view = replace(self._view, still_s=0.0)
        return self._view


@dataclass
class _Watched:
    """One rank during one stall."""

    rank: Rank
    moves_total: int
    reader: TreeReader
    next_s: float = 0.0
    stillness: Stillness = field(default_factory=Stillness)
    look: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        return self.rank.is_alive and self.rank.moves_total == self.moves_total


class TreeWatch:
    """Keeps the ``tree`` of each rank of a node up to date."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._watched: dict[int, _Watched] = {}
        self._warned: set[int] = set()
        self._rests_until_s: dict[int, float] = {}
        """Pid -> time before which its tree is not read again, because the last read was expensive."""

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                due = self._due()
                if due:
                    await self._look_at(due)
                await asyncio.sleep(_CHECK_S)
        finally:
            for watched in self._watched.values():
                if watched.look is not None:
                    watched.look.cancel()

    def _due(self) -> list[_Watched]:
        current: dict[int, _Watched] = {}
        for rank in self._node.ranks.values():
            if not rank.is_alive or (rank.stalled_s < WATCHED_AFTER_S and not rank.finished):
                continue
            watched = self._watched.get(rank.pid)
            if watched is None or watched.rank is not rank or not watched.is_current:
                reader = TreeReader(
                    (rank.pid, rank.start_ticks), store_port=rank.store_port, training_thread=rank.thread_id
                )
                look = watched.look if watched is not None else None
                watched = _Watched(rank, rank.moves_total, reader, look=look)
            current[rank.pid] = watched
        self._watched = current
        pids = {rank.pid for rank in self._node.ranks.values()}
        self._warned &= pids
        self._rests_until_s = {pid: rest_s for pid, rest_s in self._rests_until_s.items() if pid in pids}
        return [watched for watched in current.values() if self._is_due(watched)]

    def _is_due(self, watched: _Watched) -> bool:
        is_busy = watched.look is not None and not watched.look.done()
        next_s = max(watched.next_s, self._rests_until_s.get(watched.rank.pid, 0.0))
        return not is_busy and not watched.rank.held_for_stacks and self._node.clock_s >= next_s

    async def _look_at(self, due: list[_Watched]) -> None:
        began_s = self._node.clock_s
        machine = asyncio.ensure_future(in_daemon_thread(Machine.read))
        await asyncio.wait([machine], timeout=PATIENCE_S)
        if not machine.done():
            for watched in due:
                self._fail(watched, f"the machine's processes cannot be read within {PATIENCE_S:g} s")
            await asyncio.wait([machine])
        for watched in due:
            watched.look = asyncio.create_task(self._look(watched, machine, began_s))

    async def _look(self, watched: _Watched, machine: "asyncio.Future[Machine]", began_s: float) -> None:
        """Read one tree. The next look comes later if this one was expensive."""
        watched.next_s = began_s + INTERVAL_S
        self._node.tree_look_attempts_total += 1
        reading = asyncio.ensure_future(_read(watched.reader, machine))
        await asyncio.wait([reading], timeout=PATIENCE_S)
        if not reading.done():
            self._fail(watched, f"its processes cannot be read within {PATIENCE_S:g} s")
            await asyncio.wait([reading])
        sample, cost_s = reading.result()
        self._rests_until_s[watched.rank.pid] = began_s + cost_s / LARGEST_SHARE
        if isinstance(sample, Exception):
            self._fail(watched, str(sample) if isinstance(sample, UnknownError) else repr(sample))
            return
        if sample is None or not watched.is_current or watched.rank.held_for_stacks:
            return
        watched.rank.tree = watched.stillness.observe(
            sample, began_s=began_s, ended_s=self._node.clock_s, pauses=watched.rank.pauses_total
        )

    def _fail(self, watched: _Watched, reason: str) -> None:
        self._node.tree_look_failures_total += 1
        if watched.is_current:
            watched.rank.tree = watched.stillness.lose_sight()
        if watched.rank.pid not in self._warned:
            self._warned.add(watched.rank.pid)
            log.warning("rank %d: cannot see whether its processes move: %s", watched.rank.rank, reason)


async def _read(reader: TreeReader, machine: "asyncio.Future[Machine]") -> tuple[TreeSample | Exception | None, float]:
    """Return a tree, or the error if it cannot be read, and the CPU seconds that the read took."""

    def read() -> tuple[TreeSample | Exception | None, float]:
        sample: TreeSample | Exception | None
        try:
            sample = reader.read(machine.result())
        except Exception as error:  # noqa: BLE001 - no error of one rank's processes may end the agent
            sample = error
        return sample, time.thread_time()  # the thread is new: its CPU time began at 0

    return await in_daemon_thread(read)
