"""Loops over a DataLoader that are killed after a step and continue as an undisturbed one."""

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, WeightedRandomSampler

from holdfast_hooks import ConfigurationError, ResumableLoader
from holdfast_hooks.state.encoding import Stateful
from tests.support.keeping_hooks import KeepingHooks

SAMPLES, STEPS = 10, 8
"""Three batches an epoch, and the step after which nothing is left."""


class Augmented(Dataset[torch.Tensor]):
    """Samples with noise from the generators of the process that loads them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1) + random.random() + numpy.random.rand()


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in sequence": dict,
    "shuffled": lambda: {"shuffle": True},
    "of its own generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)},
    "of the epoch": lambda: {"sampler": DistributedSampler(Augmented(), num_replicas=1, rank=0)},
}
"""How a loader chooses its samples."""


def loader_of(order: str, workers: int) -> DataLoader[torch.Tensor]:
    return DataLoader(Augmented(), batch_size=4, num_workers=workers, **ORDERS[order]())


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def train(
    loader: DataLoader[torch.Tensor], saved: list[dict[str, Any]], *, until: int, fetches_first: bool, peeks: bool
) -> list[list[float]]:
    """Train in a process that knows of earlier ones what was saved; return the batches and what the steps drew."""
    seed(len(saved))
    batches = ResumableLoader(loader)
    if peeks and saved:
        next(batches)
    assert isinstance(batches, Stateful)
    hooks = KeepingHooks({"batches": batches}, saved, None)
    step = hooks.restore()
    did: list[list[float]] = []
    while step < until:
        fetched = next(batches, None) if fetches_first else torch.empty(0)
        if fetched is None:
            continue
        hooks.begin_step(step)
        batch = fetched if fetches_first else next(batches, None)
        batch = next(batches) if batch is None else batch
        did.append([*batch.flatten().tolist(), torch.rand(1).item(), random.random()])
        hooks.end_step()
        step += 1
    return did


@pytest.mark.parametrize("fetches_first", [True, False], ids=["before", "inside"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_a_killed_loop_draws_what_an_undisturbed_one_draws(order: str, workers: int, *, fetches_first: bool) -> None:
    def trained(saved: list[dict[str, Any]], until: int, *, peeks: bool = False) -> list[list[float]]:
        return train(loader_of(order, workers), saved, until=until, fetches_first=fetches_first, peeks=peeks)

    whole = trained([], STEPS)
    for killed_after in (1, 3) if workers else (1, 2, 3, 5):
        saved: list[dict[str, Any]] = []
        before = trained(saved, killed_after)
        assert before + trained(saved, STEPS, peeks=killed_after == 1) == whole, killed_after


def test_epochs_are_counted_and_one_that_was_left_continues() -> None:
    batches = ResumableLoader(loader_of("in sequence", workers=0))
    assert (len(list(batches)), batches.epoch) == (3, 1)
    for _ in batches:
        break
    assert (len(list(batches)), batches.epoch) == (2, 2)


class Window:
    """A loop of steps of ``per_step`` batches that leaves out the data of ``steps`` steps, after ``first`` steps."""

    def __init__(self, loader: Callable[[], DataLoader[torch.Tensor]], first: int, steps: int, per_step: int) -> None:
        self.loader, self.first, self.steps, self.per_step = loader, first, steps, per_step
        self.saved: list[dict[str, Any]] = []
        self.batches: ResumableLoader[torch.Tensor]

    def train(self, until: int, *, by_hand: bool = False, saves_left_out: bool = False) -> list[list[float]]:
        """Train in a process that knows of earlier ones what was saved; return what the steps trained on and drew.

        Args:
            by_hand: fetch the batches of the window in the loop, and do nothing with them.
            saves_left_out: see :class:`KeepingHooks`.
        """
        seed(len(self.saved))
        self.batches = ResumableLoader(self.loader(), self.per_step)
        left_out = {} if by_hand else {self.first: self.steps}
        hooks = KeepingHooks({"batches": self.batches}, self.saved, None, left_out, saves_left_out=saves_left_out)
        did: list[list[float]] = []
        for number in range(hooks.restore(), until):
            for _ in range(self.steps * self.per_step if by_hand and number == self.first else 0):
                self.fetch()
            hooks.begin_step(number)
            trained = torch.cat([self.fetch() for _ in range(self.per_step)])
            did.append([self.batches.epoch, *trained.flatten().tolist(), torch.rand(1).item(), random.random()])
            hooks.end_step()
        return did

    def fetch(self) -> torch.Tensor:
        """Fetch a batch, of the next epoch if this one is over."""
        batch = None
        while batch is None:
            if isinstance(sampler := self.batches._loader.sampler, DistributedSampler):
                sampler.set_epoch(self.batches.epoch)
            batch = next(self.batches, None)
        return batch


@pytest.mark.parametrize(
    ("first", "steps", "per_step"),
    [(1, 1, 1), (0, 2, 1), (3, 3, 1), (2, 5, 1), (1, 1, 2)],
    ids=["in an epoch", "first of all", "a whole epoch", "over two ends", "accumulated"],
)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("order", ORDERS)
def test_data_left_out_are_those_that_a_script_drops_itself(
    order: str, workers: int, first: int, steps: int, per_step: int
) -> None:
    def window() -> Window:
        return Window(lambda: loader_of(order, workers), first, steps, per_step)

    dropped = window()
    expected = dropped.train(STEPS, by_hand=True)
    whole = window()
    assert whole.train(STEPS) == expected
    assert whole.batches.fetched == STEPS * per_step
    assert dropped.batches.fetched == (STEPS + steps) * per_step
    for saves_left_out in (False, True):
        for killed_after in sorted({max(first, 1), first + 2}):
            parts = window()
            before = parts.train(killed_after, saves_left_out=saves_left_out)
            after = parts.train(STEPS, saves_left_out=saves_left_out)
            assert before + after == expected, (saves_left_out, killed_after)


def test_worker_processes_load_what_is_left_out() -> None:
    def window() -> Window:
        return Window(lambda: loader_of("shuffled", 2), 2, 2, 1)

    parts = window()
    assert parts.train(2) + parts.train(5) == window().train(5, by_hand=True)


def test_a_state_of_before_data_could_be_left_out_is_loaded() -> None:
    batches = ResumableLoader(loader_of("in sequence", workers=0))
    state = batches.state_dict()
    del state["left_out"]
    batches.skip(1)
    batches.load_state_dict(state)
    assert len(list(batches)) == 3


def test_a_step_without_a_batch_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a step takes 1 at least"):
        ResumableLoader(loader_of("in sequence", workers=0), batches_per_step=0)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"num_workers": 1, "persistent_workers": True}, "set persistent_workers=False"),
        ({"in_order": False}, "set in_order=True"),
    ],
)
def test_a_loader_that_cannot_repeat_its_batches_is_refused(settings: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        ResumableLoader(DataLoader(Augmented(), **settings))
