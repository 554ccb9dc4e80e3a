"""Where a loop with Accelerate continues, for each kind of loader, with two ranks in processes that are forked."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.keeping_hooks import KeepingHooks
from tests.support.programs import framework

pytestmark = pytest.mark.frameworks
accelerate = framework("accelerate")

SAMPLES, EPOCHS = 27, 2
Loader = Callable[[], Any]


class Numbers(torch.utils.data.Dataset[int]):
    """Samples with numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        if index >= SAMPLES:
            raise IndexError(index)
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    """Samples in another order in each epoch, those of a worker if there are any."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        numbers = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        worker = torch.utils.data.get_worker_info()
        return iter(numbers if worker is None else numbers[worker.id :: worker.num_workers])


class Drawn(Stream):
    """Samples in an order that a generator of the dataset draws."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES, generator=self.generator).tolist())


def plain(data: type[Any] = Numbers, *, batch: int = 4, **options: Any) -> Loader:
    options = ({} if issubclass(data, Stream) else {"shuffle": True}) | options
    return lambda: torch.utils.data.DataLoader(data(), batch_size=batch, **options)


def of_torchdata(**options: Any) -> Loader:
    def make() -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Numbers(), batch_size=4, shuffle=True, **options)

    return make


def streamed() -> Any:
    datasets = framework("datasets")
    rows = datasets.Dataset.from_dict({"number": list(range(SAMPLES))}).to_iterable_dataset(num_shards=2)
    stream = rows.shuffle(seed=3, buffer_size=8).with_format("torch")
    return torch.utils.data.DataLoader(stream, batch_size=4)


KINDS: dict[str, tuple[Loader, dict[str, Any]]] = {
    "plain": (plain(), {}),
    "seedable": (plain(), {"use_seedable_sampler": True}),
    "workers": (plain(num_workers=2), {}),
    "persistent workers": (plain(num_workers=1, persistent_workers=True), {}),
    "stream": (plain(Stream), {"dispatch_batches": False}),
    "stream of workers": (plain(Stream, num_workers=2), {"dispatch_batches": False}),
    "drawn stream": (plain(Drawn), {"dispatch_batches": False}),
    "streamed": (streamed, {"dispatch_batches": False}),
    "dispatched": (plain(), {"dispatch_batches": True}),
    "dispatched stream": (plain(Stream, drop_last=True), {"dispatch_batches": True}),
    "split": (plain(), {"split_batches": True}),
    "dispatched split": (plain(), {"dispatch_batches": True, "split_batches": True}),
    "uneven": (plain(), {"even_batches": False}),
    "stateful": (plain(), {"use_stateful_dataloader": True}),
    "stateful seedable": (plain(), {"use_stateful_dataloader": True, "use_seedable_sampler": True}),
    "stateful workers": (plain(num_workers=1), {"use_stateful_dataloader": True}),
    "stateful workers seedable": (
        plain(num_workers=1),
        {"use_stateful_dataloader": True, "use_seedable_sampler": True},
    ),
    "stateful stream": (plain(Stream), {"use_stateful_dataloader": True, "dispatch_batches": False}),
    "stateful dispatched": (plain(), {"use_stateful_dataloader": True, "dispatch_batches": True}),
    "of torchdata": (of_torchdata(), {}),
    "of torchdata stateful": (of_torchdata(), {"use_stateful_dataloader": True}),
}

DRAWN_EARLY = {
    "stateful",
    "stateful workers",
    "stateful workers seedable",
    "stateful dispatched",
    "of torchdata stateful",
}
"""Loaders of torchdata that draw the order of the first epoch in ``prepare()``. It cannot be drawn again."""


DRAWN_LATE = {"dispatched", "dispatched split", "stateful dispatched"}
"""Loaders whose next epoch has an order that follows from the random numbers that the steps before have drawn."""
LEFT_OUT = {2: 3}
"""Data that are left out: how many steps are trained before, and of how many steps they are. An epoch ends in them."""


def train(
    kind: str, saved: list[dict[str, Any]], killed_after: int | None = None, left_out: dict[int, int] | None = None
) -> list[Any]:
    """Train in a process that knows nothing of earlier ones but what was saved; return the samples that it used."""
    from holdfast_hooks.frameworks.held_training import HeldTraining
    from holdfast_hooks.state.sampling import Sampling

    make, options = KINDS[kind]
    accelerate.utils.set_seed(7)
    accelerate.state.GradientState._reset_state()
    if saved:
        torch.manual_seed(11)
        random.seed(11)
    settings = {"use_seedable_sampler": False, **options}
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**settings))
    loader = accelerator.prepare_data_loader(make())
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    held = HeldTraining(accelerator, [optimizer], Sampling())
    hooks: Any = KeepingHooks({"position": held.position}, saved, None, left_out)
    held.start(hooks, None)
    did: list[Any] = []
    for epoch in held.epochs(EPOCHS):
        for batch in held.batches(loader):
            if held.step == killed_after:
                return did
            numbers = batch["number"] if isinstance(batch, dict) else batch
            did.append((epoch, numbers.tolist(), torch.rand(()).item(), accelerator.gradient_state.end_of_dataloader))
            optimizer.step()
    return did


def follow(folder: Path) -> None:
    """Train in one of two ranks with each kind of loader, undisturbed, killed, and without some of the data.

    Write what is wrong.
    """
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # that of earlier tests, in this fork
    rank = accelerate.PartialState(cpu=True).process_index
    found = {}
    for kind in KINDS:
        whole = train(kind, [])
        wrong: list[int | str] = []
        for killed_after in (len(whole) - 2,) if kind in DRAWN_EARLY else (2, len(whole) - 2):
            saved: list[dict[str, Any]] = []
            before = train(kind, saved, killed_after)
            if before + train(kind, saved) != whole:
                wrong.append(killed_after)
        left = train(kind, [], left_out=LEFT_OUT)
        (first, steps), *_ = LEFT_OUT.items()
        others = whole[:first] + whole[first + steps :]
        if kind not in DRAWN_LATE and [one[:2] for one in left] != [one[:2] for one in others]:
            wrong.append("left out")
        if kind not in DRAWN_EARLY:
            saved = []
            before = train(kind, saved, first, LEFT_OUT)
            if before + train(kind, saved, left_out=LEFT_OUT) != left:
                wrong.append("left out after a restart")
        found[kind] = [len(whole), *wrong]
    (folder / f"found-{rank}").write_text(json.dumps(found))


def test_a_killed_loop_continues_with_the_next_batch_of_each_kind_of_loader(tmp_path: Path) -> None:
    accelerate.debug_launcher(follow, (tmp_path,), num_processes=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert list(found) == list(KINDS)
        assert {kind: steps for kind, (steps, *_) in found.items() if steps < 5} == {}
        assert {kind: wrong for kind, (_, *wrong) in found.items() if wrong} == {}


def test_a_loader_that_drew_its_first_epoch_early_is_pointed_out_once(caplog: pytest.LogCaptureFixture) -> None:
    saved: list[dict[str, Any]] = []
    train("stateful workers", saved, killed_after=2)
    assert caplog.text == ""
    train("stateful workers", saved)
    assert caplog.text.count("the rest of the first epoch may have other samples") == 1
