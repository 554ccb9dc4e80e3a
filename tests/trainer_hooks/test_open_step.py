"""What the hooks take a state for, whose loop was left inside a step."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from holdfast_hooks.left_loop import LeftStep, OpenStep

STEPS = 10


class Training:
    """Two models with an optimizer each, a scheduler and averaged weights."""

    def __init__(self) -> None:
        self.first, self.second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        self.optimizers = SGD(self.first.parameters(), lr=0.1), SGD(self.second.parameters(), lr=0.1)
        self.scheduler = StepLR(self.optimizers[0], step_size=3)
        self.average = AveragedModel(self.first)
        one, other = self.optimizers
        state = {"first": self.first, "one": one, "other": other, "scheduler": self.scheduler, "average": self.average}
        self.open = OpenStep(state)

    def step(self, parts: str) -> None:
        """Compute gradients and do what each letter stands for: both optimizers, the scheduler, the average."""
        for model in (self.first, self.second):
            model(torch.ones(1, 2)).sum().backward()
        for part in parts:
            if part in "12":
                self.optimizers[int(part) - 1].step()
            elif part == "s":
                self.scheduler.step()
            else:
                self.average.update_parameters(self.first)

    def left_after(self, last: str | None, *turns: str | None) -> LeftStep:
        """Train for some steps, which take turns, leave the next one after ``last``, and return the verdict."""
        for step, parts in enumerate([*itertools.islice(itertools.cycle(turns), STEPS), last]):
            self.open.begin(step)
            if parts is not None:
                self.step(parts)
        self.open.leave()
        return self.open.judge()


@pytest.fixture
def training() -> Training:
    return Training()


COMPLETE, UNKNOWN = LeftStep.COMPLETE, LeftStep.UNKNOWN
WHOLE = "12sa"


@pytest.mark.parametrize(
    ("turns", "last", "verdict"),
    [
        pytest.param([WHOLE], WHOLE, COMPLETE, id="has changed what the others changed"),
        pytest.param([WHOLE], None, UNKNOWN, id="has changed nothing and may have drawn random numbers"),
        pytest.param([WHOLE], "", UNKNOWN, id="has computed and changed nothing"),
        pytest.param([WHOLE], "1", UNKNOWN, id="between two optimizers"),
        pytest.param([WHOLE], "12a", UNKNOWN, id="before its scheduler"),
        pytest.param([WHOLE], "12s", UNKNOWN, id="before its average"),
        pytest.param(["12"], WHOLE, COMPLETE, id="does more than others"),
        pytest.param(["1", "2"], "1", COMPLETE, id="parts are trained in turn"),
        pytest.param(["12", "1"], "1", UNKNOWN, id="a part of every other step is missed in its turn"),
        pytest.param(["12a", "12", "12", "12", "12"], "12", UNKNOWN, id="lacks its average though averages are rare"),
        pytest.param(["12", "12a", "12", "12", "12"], "12", COMPLETE, id="a rare average is not due"),
        pytest.param(["", "", "", "12"], "12", COMPLETE, id="gradients are collected over steps"),
        pytest.param(["", "", "", "12"], "", UNKNOWN, id="collects gradients"),
        pytest.param([None], None, UNKNOWN, id="counters never show a step"),
    ],
)
def test_a_step_is_complete_if_it_has_changed_what_its_like_changed(
    training: Training, turns: list[str | None], last: str | None, verdict: LeftStep
) -> None:
    assert training.left_after(last, *turns) is verdict


def judged(state: dict[str, Any], train: Callable[[int], None]) -> LeftStep:
    """Train for some steps, leave the last one at its end, and return the verdict."""
    tell = OpenStep(state)
    for step in range(STEPS):
        tell.begin(step)
        train(step)
    tell.leave()
    return tell.judge()


def test_each_optimizer_is_looked_at_however_small_it_is() -> None:
    small, large = torch.nn.Linear(2, 1), torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(20)])
    of_small, of_large = SGD(small.parameters(), lr=0.1), SGD(large.parameters(), lr=0.1)

    def train(step: int) -> None:
        for model, optimizer in ((large, of_large), (small, of_small)):
            model(torch.ones(1, 2)).sum().backward()
            if (step, model) != (STEPS - 1, small):
                optimizer.step()

    assert judged({"small": small, "large": large, "of_small": of_small, "of_large": of_large}, train) is UNKNOWN


def test_a_scheduler_of_somebody_may_do_as_it_likes() -> None:
    class Raising:
        @property
        def last_epoch(self) -> int:
            raise RuntimeError("on purpose")

    model, fractional = torch.nn.Linear(2, 1), SimpleNamespace(last_epoch=0)
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(_: int) -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        fractional.last_epoch += 0.5

    assert judged({"optimizer": optimizer, "one": Raising(), "other": fractional}, train) is COMPLETE


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_a_fused_optimizer_and_sharded_parameters_show_a_step(missing: bool, fused: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        model = torch.nn.Linear(2, 1)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        scheduler = StepLR(optimizer, step_size=3)

        def train(step: int) -> None:
            model(torch.ones(1, 2)).sum().backward()
            if not (missing and step == STEPS - 1):
                optimizer.step()
            scheduler.step()

        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        assert judged(state, train) is (UNKNOWN if missing else COMPLETE)
    finally:
        dist.destroy_process_group()


def test_a_scheduler_alone_is_no_witness() -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = SGD([parameter], lr=0.1)
    scheduler = SimpleNamespace(last_epoch=0)

    def train(_: int) -> None:
        parameter.data = parameter.data - 0.1  # no version counter shows it
        scheduler.last_epoch += 1

    assert judged({"optimizer": optimizer, "scheduler": scheduler}, train) is UNKNOWN


def test_a_fused_optimizer_shows_its_steps_after_its_state_was_loaded() -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], fused=True)

    def train(step: int) -> None:
        parameter.grad = torch.ones(2)
        optimizer.step()
        if step == 1:
            optimizer.load_state_dict(optimizer.state_dict())

    assert judged({"optimizer": optimizer}, train) is COMPLETE


def test_an_optimizer_that_raises_stops_no_loop() -> None:
    class Fragile(SGD):
        def __getattribute__(self, name: str) -> Any:
            if name == "state" and self.__dict__.get("broken"):
                raise RuntimeError("on purpose")
            return super().__getattribute__(name)

    optimizer = Fragile([torch.ones(2, requires_grad=True)], lr=0.1)
    tell = OpenStep({"optimizer": optimizer})
    tell.begin(0)
    optimizer.broken = True  # type: ignore[attr-defined]
    tell.begin(1)
    tell.leave()
    assert tell.judge() is LeftStep.UNKNOWN


def test_the_first_step_has_no_other_to_be_compared_with(training: Training) -> None:
    training.open.begin(0)
    training.step(WHOLE)
    training.open.leave()
    assert training.open.judge() is UNKNOWN


def test_what_changes_after_the_loop_is_no_part_of_the_step(training: Training) -> None:
    assert training.left_after(WHOLE, WHOLE) is COMPLETE
    training.first.load_state_dict(torch.nn.Linear(2, 1).state_dict())
    assert training.open.judge() is UNKNOWN


def test_a_loop_whose_iterator_lives_on_was_left_at_no_known_place(training: Training) -> None:
    for step in range(STEPS + 1):
        training.open.begin(step)
        training.step(WHOLE)
    assert training.open.judge() is COMPLETE
    training.first.load_state_dict(torch.nn.Linear(2, 1).state_dict())
    assert training.open.judge() is UNKNOWN


def test_a_loop_that_ended_was_not_left(training: Training) -> None:
    training.left_after(WHOLE, WHOLE)
    training.open.step = -1
    assert training.open.judge() is LeftStep.NONE
