"""A small model of a world whose ranks have two slots each: wherever it is killed, all have one step to go back to.

The ranks go from step to step as collectives keep them together: none ends a step before all have begun it. Between
them every order of what happens is tried: when a copy begins and ends, when a rank's shard is on the disk, and when its
agent learns that the checkpoint is committed and releases the slot. Each state found is one in which the world may be
killed. Slots are chosen by the hooks' own code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from holdfast_hooks.snapshots import choose_slot
from holdfast_proto.snapshot import Header, SlotState

STEPS = 7
NOTHING = -1


@dataclass(frozen=True)
class Rank:
    """What one rank and its agent have done so far."""

    slots: tuple[Header, ...]
    ended: int = NOTHING
    """The newest step whose end it has passed."""
    copying: int | None = None
    """The slot that it is filling."""
    written: int = NOTHING
    """The newest step of which its shard is on the disk."""

    def steps(self) -> set[int]:
        return {slot.step for slot in self.slots if slot.state is SlotState.COMPLETE}

    def pinned(self) -> set[int]:
        return {slot.step for slot in self.slots if slot.state is SlotState.COMPLETE and slot.persist}

    def with_slot(self, index: int, slot: Header) -> "Rank":
        return replace(self, slots=(*self.slots[:index], slot, *self.slots[index + 1 :]))


@dataclass(frozen=True)
class World:
    """All ranks, and the disk."""

    ranks: tuple[Rank, ...]
    checkpoint_every: int
    committed: int = NOTHING
    held_by_all: int = NOTHING
    """The newest step that all ranks once held pinned."""

    def common(self) -> set[int]:
        return set.intersection(*(rank.steps() for rank in self.ranks))

    def with_rank(self, number: int, rank: Rank) -> "World":
        ranks = (*self.ranks[:number], rank, *self.ranks[number + 1 :])
        pinned = set.intersection(*(rank.pinned() for rank in ranks))
        written = {rank.written for rank in ranks}
        return replace(
            self,
            ranks=ranks,
            committed=max(written) if len(written) == 1 else self.committed,
            held_by_all=max(self.held_by_all, *pinned, NOTHING),
        )


def header(state: SlotState, step: int, *, persist: bool = False) -> Header:
    return Header(state, persist, 2, step, 0, 0, 0, 0)


def next_worlds(world: World, *, hold: bool) -> Iterator[World]:
    for number, rank in enumerate(world.ranks):
        for changed in (*copy(world, rank), *write(rank), *release(world, number, hold=hold)):
            yield world.with_rank(number, changed)


def copy(world: World, rank: Rank) -> Iterator[Rank]:
    """End a step and begin its snapshot, or complete that."""
    if rank.copying is not None:
        slot = rank.slots[rank.copying]
        is_due = (slot.step + 1) % world.checkpoint_every == 0
        complete = header(SlotState.COMPLETE, slot.step, persist=is_due and not any(s.persist for s in rank.slots))
        yield replace(rank.with_slot(rank.copying, complete), ended=slot.step, copying=None)
    elif rank.ended < STEPS and all(other.ended >= rank.ended for other in world.ranks):
        index = choose_slot(rank.slots, restored=[False] * len(rank.slots), generation=2)
        if index is None:
            yield replace(rank, ended=rank.ended + 1)
        else:
            yield replace(rank.with_slot(index, header(SlotState.WRITING, rank.ended + 1)), copying=index)


def write(rank: Rank) -> Iterator[Rank]:
    """Have the shard of the pinned slot on the disk."""
    for step in rank.pinned() - {rank.written}:
        yield replace(rank, written=step)


def release(world: World, number: int, *, hold: bool) -> Iterator[Rank]:
    """Release a slot whose shard is written, when the checkpoint is committed or never will be."""
    rank = world.ranks[number]
    for index, slot in enumerate(rank.slots):
        is_lost = any(other.ended >= slot.step not in {*other.pinned(), other.written} for other in world.ranks)
        if slot.persist and slot.step == rank.written and (not hold or world.committed >= slot.step or is_lost):
            yield rank.with_slot(index, replace(slot, persist=False))


def all_worlds(slots: int, ranks: int, *, checkpoint_every: int = 2, hold: bool = True) -> set[World]:
    start = World((Rank((header(SlotState.EMPTY, NOTHING),) * slots),) * ranks, checkpoint_every)
    found, left = {start}, [start]
    while left:
        new = set(next_worlds(left.pop(), hold=hold)) - found
        found |= new
        left += new
    return found


def restorable(world: World) -> int:
    """The newest step that all ranks could go back to if the world were killed now."""
    return max(world.committed, *world.common(), NOTHING)


@pytest.fixture(scope="module")
def worlds() -> set[World]:
    return all_worlds(slots=2, ranks=2)


def test_killed_at_any_moment_a_world_goes_back_to_its_newest_checkpoint_at_least(worlds: set[World]) -> None:
    assert len(worlds) > 10_000
    assert [world for world in worlds if restorable(world) < world.held_by_all] == []


def test_killed_between_the_ends_of_two_steps_a_world_loses_nothing(worlds: set[World]) -> None:
    between = [w for w in worlds if all((r.copying, r.ended) == (None, w.ranks[0].ended) for r in w.ranks)]
    assert {world.ranks[0].ended for world in between} == set(range(NOTHING, STEPS + 1))
    assert [world for world in between if restorable(world) < world.ranks[0].ended] == []


def test_killed_at_any_moment_a_world_without_checkpoints_loses_a_step_at_most() -> None:
    worlds = all_worlds(slots=2, ranks=3, checkpoint_every=STEPS + 2)
    assert [world for world in worlds if restorable(world) < min(rank.ended for rank in world.ranks)] == []


def test_slot_released_before_the_commit_would_lose_the_checkpoint() -> None:
    worlds = all_worlds(slots=2, ranks=2, hold=False)
    assert any(restorable(world) < world.held_by_all for world in worlds)
