"""All ranks of a generation, and what every tick asks of all of them.

A run is looked at ten times a second, and few of its nodes have a new state since. So the part of a node is read once,
when its state is new. A tick puts the parts together, and looks at single ranks only where a part shows a reason.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain
from typing import TypeVar, cast

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_Found = TypeVar("_Found")

_ANSWERS_KEPT = 64
"""Answers to questions about worlds that are kept. A tick asks four of each run that stands still."""


GroupId = tuple[str, tuple[int, ...]]
"""Name, and members as runs: processes use one name for groups of different members."""


def group_id(group: common.GroupProgress) -> GroupId:
    """Return what identifies a group of which the members are known."""
    return group.group, tuple(group.member_runs)


GroupUse = tuple[GroupId, int, common.GroupProgress]
"""A group with known members, a rank, and the place of the rank in the group's calls on hosts."""


def group_uses(ranks: Mapping[int, store.RankState]) -> Iterable[GroupUse]:
    """Yield the groups of ranks, rank by rank."""
    if isinstance(ranks, World):
        return chain.from_iterable(part.group_uses for part in ranks.parts)
    return _group_uses(ranks)


def _group_uses(ranks: Mapping[int, store.RankState]) -> Iterator[GroupUse]:
    for number, rank in ranks.items():
        for group in rank.progress.groups:
            if group.member_runs:
                yield group_id(group), number, group


@dataclass(frozen=True, kw_only=True)
class NodePart:
    """The ranks of one node."""

    state: store.NodeState
    """State that was read."""
    ranks: Mapping[int, store.RankState]
    ended: tuple[int, ...]
    """Ranks whose exit is known."""
    left: tuple[int, ...]
    """Ranks that have closed their hooks and have not ended."""
    named: tuple[int, ...]
    """Ranks whose recorders name pending calls."""
    lives: Mapping[int, int]
    """Number of ranks by Life number."""
    halted: int
    """Number of ranks in training that a signal or a debugger has stopped."""
    phases: frozenset[int]
    """Phase numbers of the ranks in training that nothing has stopped."""
    alive: int
    """Number of ranks that have not exited."""
    stopped: int
    """Number of these that a signal has stopped."""
    untrained: int
    """Number of ranks that have completed no step."""
    longest_stall_s: float
    least_live_stall_s: float
    """Shortest stall of a live rank; infinity without one."""
    longest_start_s: float
    """Longest stall of a live rank that has completed no step."""
    least_step: int
    """Least step that a rank is in, or has ended in."""

    @cached_property
    def said(self) -> bytes:
        """Digest of what its ranks say of their calls, and of no time that passes while they stand still."""
        return said_by(self.ranks.values())

    @cached_property
    def group_uses(self) -> tuple[GroupUse, ...]:
        """The groups of its ranks. A healthy run asks for none."""
        return tuple(_group_uses(self.ranks))


def said_by(ranks: Iterable[store.RankState]) -> bytes:
    """Return a digest of what ranks say of their calls."""
    words = chain.from_iterable(map(_words, ranks))
    return blake2b(b"".join(part for word in words for part in (b"%d:" % len(word), word)), digest_size=16).digest()


def _words(rank: store.RankState) -> Iterator[bytes]:
    yield f"{rank.rank} {rank.life} {rank.process_state} {rank.left_training}".encode()
    yield rank.progress.SerializeToString()
    yield rank.exit.SerializeToString()
    yield from (call.SerializeToString() for call in rank.pending)


def is_stopped(rank: store.RankState) -> bool:
    """Return whether a signal has stopped the process. A debugger's stop is another state."""
    return rank.process_state == "T" and rank.life != store.LIFE_EXITED


def parts_of(nodes: Mapping[str, store.NodeState], known: Mapping[str, NodePart]) -> dict[str, NodePart]:
    """Read the states of nodes that were not read for ``known``."""
    return {
        name: part if (part := known.get(name)) is not None and part.state is node else _part_of(node)
        for name, node in nodes.items()
    }


def _part_of(node: store.NodeState) -> NodePart:
    by_number = {rank.rank: rank for rank in node.ranks}
    ended = tuple(number for number, rank in by_number.items() if rank.HasField("exit"))
    live = [rank for rank in by_number.values() if rank.life != store.LIFE_EXITED]
    training = [
        (rank.process_state in ("T", "t"), rank.progress.phase)
        for rank in live
        if rank.life != store.LIFE_STARTING and not rank.left_training
    ]
    untrained = [rank for rank in by_number.values() if not rank.steps_done]
    steps = (rank.exit.step if number in ended else rank.progress.step for number, rank in by_number.items())
    return NodePart(
        state=node,
        ranks=by_number,
        ended=ended,
        left=tuple(rank.rank for rank in live if rank.left_training),
        named=tuple(number for number, rank in by_number.items() if rank.pending),
        lives=Counter(rank.life for rank in by_number.values()),
        halted=sum(is_halted for is_halted, _ in training),
        phases=frozenset(phase for is_halted, phase in training if not is_halted),
        alive=len(live),
        stopped=sum(map(is_stopped, live)),
        untrained=len(untrained),
        longest_stall_s=max((rank.stalled_s for rank in by_number.values()), default=0.0),
        least_live_stall_s=min((rank.stalled_s for rank in live), default=math.inf),
        longest_start_s=max((rank.stalled_s for rank in untrained if rank.life != store.LIFE_EXITED), default=0.0),
        least_step=min(steps, default=-1),
    )


def world_of(ranks: Iterable[store.RankState]) -> "World":
    """Return the world of some ranks, whatever their nodes."""
    return World([_part_of(store.NodeState(ranks=ranks))])


class _Question:
    """A function without arguments, known by a key."""

    def __init__(self, key: Hashable, find: Callable[[], object]) -> None:
        self.key = key
        self.find: Callable[[], object] | None = find

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


@lru_cache(_ANSWERS_KEPT)
def _answer(question: _Question) -> object:
    assert question.find is not None
    found, question.find = question.find(), None  # the function holds a whole view, and is asked only once
    return found


class World(dict[int, store.RankState]):
    """Ranks by number. Nothing changes it."""

    def __init__(self, parts: Iterable[NodePart]) -> None:
        super().__init__()
        self._remembered: dict[Hashable, object] = {}
        self.parts = tuple(part for part in parts if part.ranks)
        for part in self.parts:
            self.update(part.ranks)

    def remembered(self, what: Hashable, find: Callable[[], _Found]) -> _Found:
        """Return what ``find`` returns. It must follow from ``what`` and from what the ranks say of their calls alone.

        Several views look at the world of one tick, and a run that stands still looks the same in all its ticks, but
        for the time that has passed.
        """
        if what not in self._remembered:
            self._remembered[what] = _answer(_Question((what, self._said), find))
        return cast(_Found, self._remembered[what])

    @cached_property
    def _said(self) -> tuple[bytes, ...]:
        return tuple(part.said for part in self.parts)

    @cached_property
    def ended(self) -> dict[int, store.RankState]:
        """The ranks whose exit is known."""
        return {number: self[number] for part in self.parts for number in part.ended}

    @cached_property
    def left(self) -> dict[int, store.RankState]:
        """The ranks that have closed their hooks and have not ended."""
        return {number: self[number] for part in self.parts for number in part.left}

    @cached_property
    def named(self) -> dict[int, store.RankState]:
        """The ranks whose recorders name pending calls."""
        return {number: self[number] for part in self.parts for number in part.named}

    @cached_property
    def coordinates(self) -> Mapping[int, Mapping[str, int]]:
        """The place of each rank in the layout. A tick may see many steps, and reads them once."""
        return {number: dict(rank.coordinates) for number, rank in self.items()}

    @property
    def alive(self) -> int:
        """Number of ranks that have not exited."""
        return sum(part.alive for part in self.parts)

    @property
    def stopped(self) -> int:
        """Number of live ranks that a signal has stopped."""
        return sum(part.stopped for part in self.parts)

    @property
    def untrained(self) -> int:
        """Number of ranks that have completed no step."""
        return sum(part.untrained for part in self.parts)

    @property
    def longest_start_s(self) -> float:
        """Longest stall of a live rank that has completed no step."""
        return max((part.longest_start_s for part in self.parts), default=0.0)

    @property
    def least_step(self) -> int:
        """Least step that a rank is in, or has ended in; -1 without ranks."""
        return min((part.least_step for part in self.parts), default=-1)

    def stalled_for(self, seconds: float) -> Iterable[store.RankState]:
        """Yield the ranks that have stalled for longer than ``seconds``."""
        behind = (part for part in self.parts if part.longest_stall_s > seconds)
        return (rank for part in behind for rank in part.ranks.values() if rank.stalled_s > seconds)
