"""All ranks have a step in common at any moment, while each has two slots and checkpoints are written."""

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
STEPS = 160


class World:
    """Ranks in lockstep: a rank ends a step only after all have ended the step before."""

    def __init__(self, bench: Any, make_slots: Callable[..., list[Path]], dice: random.Random) -> None:
        self.ranks: list[Any] = []
        self.slots: list[list[Slot]] = []
        self._dice = dice
        for rank in range(RANKS):
            paths = make_slots(2, prefix=f"rank-{rank}")
            self.ranks.append(bench({"model": torch.nn.Linear(2, 2)}, paths, snapshot_every=1, checkpoint_every=EVERY))
            self.slots.append([Slot(path) for path in paths])
        self._waiting: list[Any] = []
        self.checkpoints: set[int] = set()
        self._is_partly_written = False
        """Whether some ranks have their slot back and others do not."""
        self.common: list[int] = []
        """Newest complete step of all ranks, at each moment of the last step in which all had pinned alike."""

    def end(self, step: int) -> None:
        """Let all ranks end a step, in any order, and some of them while others copy."""
        self._waiting = self._dice.sample(self.ranks, RANKS)
        self.common = []
        while self._waiting:
            self._waiting.pop().end(step)
        self.checkpoints |= self.pinned()
        self._write()

    def in_a_copy(self) -> None:
        """Check the state while a rank copies, and perhaps let another rank begin its copy."""
        if self._waiting and self._dice.random() < 0.5:
            run = self._waiting.pop()
            run.end(run.timeline.step + 1)
        if not self._is_partly_written:
            self.common.append(max(set.intersection(*self.complete()), default=-1))

    def pinned(self) -> set[int]:
        return {slot.header.step for slots in self.slots for slot in slots if slot.header.persist}

    def complete(self) -> list[set[int]]:
        return [{slot.header.step for slot in slots if slot.header.state is SlotState.COMPLETE} for slots in self.slots]

    def _write(self) -> None:
        """Act as the agents: write shards as fast as possible and release the slots."""
        for slots in self.slots:
            for slot in slots:
                if slot.header.persist and self._dice.random() < 0.5:
                    slot.set_persist(False)
        pins = {tuple(slot.header.step for slot in slots if slot.header.persist) for slots in self.slots}
        self._is_partly_written = len(pins) > 1


@pytest.mark.parametrize("seed", range(4))
def test_ranks_lose_one_step_at_most_unless_a_slot_is_pinned_and_none_between_two_copies(
    bench: Any, make_slots: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    world = World(bench, make_slots, random.Random(seed))
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
        assert step == 0 or min(world.common, default=step) >= min(pinned, default=step - 1)
        assert step in set.intersection(*world.complete())
    assert world.checkpoints >= set(range(EVERY - 1, STEPS - EVERY, EVERY))
