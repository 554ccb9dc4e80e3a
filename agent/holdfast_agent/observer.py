"""Takes in ranks that another launcher starts. The agent watches them; only commands/command_runner.py signals them."""

import logging
import shutil

from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank
from holdfast_agent.processes.replacements import parent_of
from holdfast_agent.rank_supervisor import GENERATIONS_KEPT, RankSupervisor
from holdfast_agent.reports.message_checks import clean_hello, flaw_of_hello
from holdfast_base import processes
from holdfast_proto.rank_context import pid_namespace
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)


class Observer:
    """Learns from the first messages of the ranks which world runs on this node."""

    def __init__(self, node: Node, supervisor: RankSupervisor) -> None:
        self._node = node
        self._supervisor = supervisor

    def admit(self, hello: session.Hello) -> Rank | None:
        """Return the rank that opens a session, or None if it cannot belong to the world that runs here.

        The first rank of a launch begins a new world. It belongs to a new launch if its generation is newer, or if it
        takes the place of a process that is gone, or if no rank of the last world is alive.
        """
        node = self._node
        if hello.run != node.spec.run or self._is_foreign(hello):
            return None
        flaw = flaw_of_hello(hello)
        if flaw:
            node.errors.refuse("rank_messages", flaw)
            return None
        clean_hello(hello, lambda reason: node.errors.refuse("rank_messages", reason))
        known = node.ranks.get(hello.rank)
        same_launch = (hello.generation, hello.world_size) == (node.generation, node.start.world_size)
        if same_launch and known is not None and _is_process(known, hello.pid):
            _welcome(known, hello)
            return known
        if same_launch and known is not None and _lives(known):
            log.warning("refused pid %d: rank %d is pid %d, which is alive", hello.pid, hello.rank, known.pid)
            return None
        if not same_launch and hello.generation <= node.generation and any(map(_lives, node.ranks.values())):
            return None  # a late rank of an earlier world
        if known is not None or not same_launch:
            self._begin(hello, kept=[rank for rank in node.ranks.values() if same_launch and _lives(rank)])
        return self._enter(hello)

    def _is_foreign(self, hello: session.Hello) -> bool:
        """Return whether a rank's pid means another process here, or none. It would soon count as dead."""
        if hello.pid_namespace in (0, pid_namespace()):
            return False
        node = self._node
        reason = (
            f"node {node.options.node}: ranks in a container with process numbers of its own cannot be watched from"
            " outside: run `holdfast observe` in the container"
        )
        if node.errors.refuse("rank_messages", f"rank {hello.rank}: {reason}"):
            node.refused_ranks = reason
            node.changed.set()
        return True

    def _begin(self, hello: session.Hello, kept: list[Rank]) -> None:
        """Begin a new world. ``kept``: ranks that are already known and belong to it."""
        node = self._node
        ranks = hello.local_world_size or hello.world_size
        first_rank = hello.rank - hello.local_rank
        log.info("generation %d: %d ranks, started by another launcher", hello.generation, ranks)
        start = store.StartGeneration(first_rank=first_rank, ranks=ranks, world_size=hello.world_size, step=-1)
        node.begin_generation(hello.generation, start)
        node.ranks.update({rank.rank: rank for rank in kept})
        old = node.options.black_box(hello.generation - GENERATIONS_KEPT, 0).parent
        shutil.rmtree(old, ignore_errors=True)

    def _enter(self, hello: session.Hello) -> Rank:
        rank = Rank(hello.rank, hello.generation, hello.local_rank, hello.pid, processes.start_ticks(hello.pid))
        rank.parent = parent_of(hello.pid)
        _welcome(rank, hello)
        self._supervisor.exits.watch(rank)
        self._supervisor.record.save()
        self._node.changed.set()
        return rank


def _welcome(rank: Rank, hello: session.Hello) -> None:
    rank.is_identified = hello.start_ticks == rank.start_ticks != 0
    rank.welcome(hello)


def _is_process(rank: Rank, pid: int) -> bool:
    return rank.pid == pid and rank.start_ticks == processes.start_ticks(pid)


def _lives(rank: Rank) -> bool:
    return processes.is_alive(rank.pid, rank.start_ticks)
