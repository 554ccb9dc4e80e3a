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


def shuffled(workers: int) -> DataLoader[torch.Tensor]:
    return DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=workers)


def in_sequence(workers: int) -> DataLoader[torch.Tensor]:
    return DataLoader(Augmented(), batch_size=4, num_workers=workers)


def of_own_generator(workers: int) -> DataLoader[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=workers, generator=generator)


def weighted(workers: int) -> DataLoader[torch.Tensor]:
    sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    return DataLoader(Augmented(), batch_size=4, sampler=sampler, num_workers=workers)


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
@pytest.mark.parametrize("make", [shuffled, in_sequence, of_own_generator, weighted])
def test_a_killed_loop_draws_what_an_undisturbed_one_draws(
    make: Callable[[int], DataLoader[torch.Tensor]], workers: int, *, fetches_first: bool
) -> None:
    whole = train(make(workers), [], until=STEPS, fetches_first=fetches_first, peeks=False)
    for killed_after in (1, 3) if workers else (1, 2, 3, 5):
        saved: list[dict[str, Any]] = []
        before = train(make(workers), saved, until=killed_after, fetches_first=fetches_first, peeks=False)
        after = train(make(workers), saved, until=STEPS, fetches_first=fetches_first, peeks=killed_after == 1)
        assert before + after == whole, killed_after


def test_epochs_are_counted_and_one_that_was_left_continues() -> None:
    batches = ResumableLoader(in_sequence(0))
    assert len(list(batches)) == 3
    assert batches.epoch == 1
    for _ in batches:
        break
    assert len(list(batches)) == 2
    assert batches.epoch == 2


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
