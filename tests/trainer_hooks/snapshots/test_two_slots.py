"""All ranks have a step in common at any moment, while checkpoints are written and replica snapshots are made."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast_hooks.snapshots.device_copies import DeviceCopy
from holdfast_hooks.snapshots.slot_layout import SlotTensors
from holdfast_proto.snapshot import Slot, SlotState

RANKS = 3
EVERY = 8
REPLICATE_EVERY = 5
STEPS = 160


class World:
    """Ranks in lockstep: a rank ends a step only after all have ended the step before."""

    def __init__(self, bench: Any, make_slots: Callable[..., list[Path]], dice: random.Random, slots: int) -> None:
        self.ranks: list[Any] = []
        self.slots: list[list[Slot]] = []
        self._dice = dice
        for rank in range(RANKS):
            paths = make_slots(slots, prefix=f"rank-{rank}")
            self.ranks.append(bench({"model": torch.nn.Linear(2, 2)}, paths, snapshot_every=1, checkpoint_every=EVERY))
            self.slots.append([Slot(path) for path in paths])
        self._waiting: list[Any] = []
        self.checkpoints: set[int] = set()
        self.replicas: set[int] = set()
        self._is_partly_written = False
        """Whether some ranks have their slot back and others do not."""
        self.common: list[int] = []
        """Newest complete step of all ranks, at each moment of the last step in which all had pinned alike."""

    def end(self, step: int) -> None:
        """Let all ranks end a step, in any order, and some of them while others copy."""
        self._waiting = self._dice.sample(self.ranks, RANKS)
        self.common = []
        while self._waiting:
            self._end(self._waiting.pop(), step)
        headers = [slot.header for slots in self.slots for slot in slots]
        self.checkpoints |= {header.step for header in headers if header.persist}
        self.replicas |= {header.step for header in headers if header.replica}
        self._write()

    def _end(self, run: Any, step: int) -> None:
        run.end(step, replica=step % REPLICATE_EVERY == 0)

    def in_a_copy(self) -> None:
        """Check the state while a rank copies, and perhaps let another rank begin its copy."""
        if self._waiting and self._dice.random() < 0.5:
            run = self._waiting.pop()
            self._end(run, run.timeline.step + 1)
        if not self._is_partly_written:
            self.common.append(max(set.intersection(*self.complete()), default=-1))

    def pinned(self) -> set[int]:
        return {slot.header.step for slots in self.slots for slot in slots if slot.header.is_pinned}

    def complete(self) -> list[set[int]]:
        return [{slot.header.step for slot in slots if slot.header.state is SlotState.COMPLETE} for slots in self.slots]

    def _write(self) -> None:
        """Act as the agents: write shards as fast as possible and release the slots."""
        for slots in self.slots:
            for slot in slots:
                if slot.header.persist and self._dice.random() < 0.5:
                    slot.set_persist(False)
                if slot.header.replica and self._dice.random() < 0.5:
                    slot.release_replica()
        pins = {frozenset(slot.header.step for slot in slots if slot.header.is_pinned) for slots in self.slots}
        self._is_partly_written = len(pins) > 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slots", [2, 3])
def test_ranks_lose_one_step_at_most_unless_all_slots_but_one_are_pinned_and_none_between_two_copies(
    bench: Any, make_slots: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch, seed: int, slots: int
) -> None:
    world = World(bench, make_slots, random.Random(seed), slots)
    copy = SlotTensors.copy

    def watched(tensors: SlotTensors, parts: Sequence[Any]) -> list[DeviceCopy]:
        world.in_a_copy()
        return copy(tensors, parts)

    monkeypatch.setattr(SlotTensors, "copy", watched)
    for step in range(STEPS):
        for run in world.ranks:
            run.timeline.step = step - 1
        pinned = world.pinned()
        world.end(step)
        least = step - 1 if len(pinned) < slots - 1 else max(pinned)
        assert step == 0 or min(world.common, default=step) >= least
        assert step in set.intersection(*world.complete())
    assert world.checkpoints >= set(range(EVERY - 1, STEPS - EVERY, EVERY))
    assert bool(world.replicas) == (slots > 2)
