"""Loops over a DataLoader that are killed after a step and continue as an undisturbed one."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

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
        return index + torch.rand(1) + random.random()


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in sequence": dict,
    "shuffled": lambda: {"shuffle": True},
    "of its own generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)},
}
"""How a loader chooses its samples."""


def loader_of(order: str, workers: int) -> DataLoader[torch.Tensor]:
    return DataLoader(Augmented(), batch_size=4, num_workers=workers, **ORDERS[order]())


def train(
    loader: DataLoader[torch.Tensor], saved: list[dict[str, Any]], *, until: int, fetches_first: bool, peeks: bool
) -> list[list[float]]:
    """Train in a process that knows of earlier ones what was saved; return the batches and what the steps drew."""
    torch.manual_seed(len(saved))
    random.seed(len(saved))
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
