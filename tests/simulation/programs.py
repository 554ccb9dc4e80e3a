"""Programs of ranks that train with data, tensor, pipeline and expert parallelism: the calls of some steps."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise


class Do(IntEnum):
    """The next thing that a rank's training thread does. The operand is a group's index or a peer's rank."""

    ENTER = 0
    """Post a collective of a group, and continue."""
    WAIT = 1
    """Wait until everything posted in a group is complete."""
    SEND = 2
    """Send to a peer. The send is buffered, so the thread continues."""
    POST_RECV = 3
    """Post a receive from a peer, and continue."""
    WAIT_RECV = 4
    """Wait until all receives posted from a peer are complete."""


Call = tuple[Do, int]


@dataclass(frozen=True)
class Group:
    """A process group."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout of ranks. Tensor ranks are neighbours, stages are furthest apart, experts are within data."""

    data: int = 2
    tensor: int = 2
    pipeline: int = 2
    experts: int = 1
    microbatches: int = 3
    prefetches: bool = True
    """Whether receives and gathers of parameters are posted ahead."""

    @property
    def world_size(self) -> int:
        return self.data * self.tensor * self.pipeline

    def rank_at(self, stage: int, replica: int, shard: int) -> int:
        return (stage * self.data + replica) * self.tensor + shard


@dataclass(frozen=True)
class Programs:
    """The programs of all ranks of a world."""

    groups: tuple[Group, ...]
    calls: tuple[tuple[Call, ...], ...]
    """Calls by rank."""


def random_layout(seed: int) -> Layout:
    """Return a small layout."""
    chance = random.Random(seed)
    data = chance.choice((1, 2, 2, 4))
    return Layout(
        data=data,
        tensor=chance.choice((1, 2, 2, 4)),
        pipeline=chance.choice((1, 2, 2, 3, 4)),
        experts=chance.choice([size for size in (1, 2, 4) if size <= data]),
        microbatches=chance.choice((2, 3, 5)),
        prefetches=chance.random() < 0.5,
    )


def training(layout: Layout, steps: int = 2) -> Programs:
    """Return the programs of some steps of 1F1B."""
    groups = [Group("world", tuple(range(layout.world_size)))]
    tensor: dict[int, int] = {}
    data: dict[int, int] = {}
    experts: dict[int, int] = {}
    for rank in range(layout.world_size):
        stage, rest = divmod(rank, layout.data * layout.tensor)
        replica, shard = divmod(rest, layout.tensor)
        first = replica - replica % layout.experts
        for known, members, name in (
            (tensor, [layout.rank_at(stage, replica, s) for s in range(layout.tensor)], "tp"),
            (data, [layout.rank_at(stage, r, shard) for r in range(layout.data)], "dp"),
            (experts, [layout.rank_at(stage, first + r, shard) for r in range(layout.experts)], "ep"),
        ):
            if members[0] == rank:
                groups.append(Group(name, tuple(members)))
                known.update(dict.fromkeys(members, len(groups) - 1))
    calls = tuple(
        tuple(_Rank(layout, rank, tensor[rank], data[rank], experts[rank]).steps(steps))
        for rank in range(layout.world_size)
    )
    return Programs(tuple(groups), calls)


@dataclass(frozen=True)
class _Rank:
    layout: Layout
    rank: int
    tensor: int
    data: int
    experts: int

    def steps(self, count: int) -> Iterator[Call]:
        for _ in range(count):
            yield from self._step()

    def _step(self) -> Iterator[Call]:
        layout = self.layout
        stage = self.rank // (layout.data * layout.tensor)
        stride = layout.data * layout.tensor
        before = self.rank - stride if stage else None
        after = self.rank + stride if stage < layout.pipeline - 1 else None
        yield from self._both(self.data)  # the first layer's parameters
        if layout.prefetches:
            yield Do.ENTER, self.data  # and the next one's
        passes = self._schedule(before, after)
        if layout.prefetches:
            yield from self._receive(passes[0][0])
        for (source, target), (next_source, _) in pairwise([*passes, (None, None)]):
            yield from self._pass(source, target, next_source)
        for _ in range(3):
            yield Do.ENTER, self.data  # buckets of gradients
        yield Do.WAIT, self.data
        yield from self._both(self.tensor)
        yield from self._both(0)  # the gradients' norm

    def _schedule(self, before: int | None, after: int | None) -> list[tuple[int | None, int | None]]:
        """Return the ranks from which each pass receives and to which it sends, in the order of 1F1B."""
        forward, backward = (before, after), (after, before)
        stages_after = self.layout.pipeline - 1 - self.rank // (self.layout.data * self.layout.tensor)
        warm_up = min(stages_after, self.layout.microbatches)
        steady = [forward, backward] * (self.layout.microbatches - warm_up)
        return [forward] * warm_up + steady + [backward] * warm_up

    def _pass(self, source: int | None, target: int | None, next_source: int | None) -> Iterator[Call]:
        """Yield the calls of one microbatch, forward or backward."""
        if not self.layout.prefetches:
            yield from self._receive(source)
        if self.layout.experts > 1:
            yield from self._both(self.experts)
        if source is not None:
            yield Do.WAIT_RECV, source
        yield from self._both(self.tensor)
        if self.layout.prefetches:
            yield from self._receive(next_source)
        if target is not None:
            yield Do.SEND, target

    def _receive(self, source: int | None) -> Iterator[Call]:
        if source is not None:
            yield Do.POST_RECV, source

    def _both(self, group: int) -> Iterator[Call]:
        yield Do.ENTER, group
        yield Do.WAIT, group
