"""Checks the state of one node. It comes every second from every node: what was good is not checked again."""

from holdfast_daemon.validation.message_rules import OF_ANY_RUN, checker_of
from holdfast_proto.checks.message_checker import MessageChecker
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.limits import LONGEST_S, MOST_RANKS
from holdfast_proto.v1 import store_pb2 as store

_STANDS_S = 0.3
"""Stall from which a rank is likely to say the same again."""


class KnownRanks:
    """Remembers the states of ranks that were good, so that those that stand still are not checked again and again.

    One hang makes all ranks of a run stand still, and all nodes send more often: then time is short, and what each rank
    says is what it has said before, but for its ages. So the bytes without these are compared, which costs little.
    """

    def __init__(self) -> None:
        self._good: dict[tuple[str, int], tuple[int, bytes]] = {}
        """By node and rank: the size of the world, and the state without its ages."""

    def check(self, node: str, rank: store.RankState, checker: MessageChecker) -> None:
        """Check the state of a rank."""
        if rank.stalled_s < _STANDS_S:
            checker.check(rank)
            return
        ages = rank.stalled_s, rank.silent_s, rank.still_s, rank.sign_age_s, rank.busy_s
        rank.stalled_s = rank.silent_s = rank.still_s = rank.sign_age_s = rank.busy_s = 0.0
        known = (checker.world_size, rank.SerializePartialToString())
        rank.stalled_s, rank.silent_s, rank.still_s, rank.sign_age_s, rank.busy_s = ages
        place = (node, rank.rank)
        if self._good.get(place) == known and min(ages) >= 0.0 and sum(ages) <= LONGEST_S:  # NaN is in no sum's range
            return
        checker.check(rank)
        if len(self._good) >= MOST_RANKS:
            self._good.clear()
        self._good[place] = known


def check_node(
    node: store.NodeState, *, name: str, run: str, spec: store.RunSpec | None, known: KnownRanks
) -> frozenset[tuple[int, int]]:
    """Check a node's state; return the ranks that it says are alive there, each with the generation."""
    if node.node != name:
        raise RefusedError(f"it is the state of node {node.node[:80]!r}")
    if node.run != run:
        raise RefusedError(f"it is of run {node.run[:80]!r}")
    OF_ANY_RUN.check(node)
    world_size = _world_size(node, spec)
    checker = checker_of(world_size)
    numbers = set()
    alive = set()
    for rank in node.ranks:
        number = rank.rank
        if number in numbers:
            raise RefusedError(f"rank {number} is there twice")
        numbers.add(number)
        if number >= world_size:
            raise RefusedError(f"rank {number} is not in a world of {world_size}")
        try:
            known.check(name, rank, checker)
        except RefusedError as error:
            raise RefusedError(f"rank {number}: {error}") from None
        if rank.life != store.LIFE_EXITED:
            alive.add((node.generation, number))
    return frozenset(alive)


def _world_size(node: store.NodeState, spec: store.RunSpec | None) -> int:
    if spec is not None and spec.ranks_per_node:
        return spec.nodes * spec.ranks_per_node
    return node.world_size or MOST_RANKS
