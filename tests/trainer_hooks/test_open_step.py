"""What the hooks take a state for, whose loop was left inside a step."""

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
        self.open = OpenStep(
            {
                "first": self.first,
                "one": self.optimizers[0],
                "other": self.optimizers[1],
                "scheduler": self.scheduler,
                "average": self.average,
            }
        )

    def compute(self) -> None:
        for model in (self.first, self.second):
            model(torch.ones(1, 2)).sum().backward()

    def whole_step(self, step: int) -> None:
        self.compute()
        for optimizer in self.optimizers:
            optimizer.step()
        self.scheduler.step()
        self.average.update_parameters(self.first)

    def left_after(self, last: Callable[[], None], body: Callable[[int], None] | None = None) -> LeftStep:
        """Train with ``body`` for some steps, leave the next one after ``last``, and return the verdict."""
        for step in range(STEPS):
            self.open.begin(step)
            (body or self.whole_step)(step)
        self.open.begin(STEPS)
        last()
        self.open.leave()
        return self.open.judge()


@pytest.fixture
def training() -> Training:
    return Training()


def test_a_step_that_has_changed_what_the_others_changed_is_complete(training: Training) -> None:
    assert training.left_after(lambda: training.whole_step(STEPS)) is LeftStep.COMPLETE


def test_a_step_that_has_changed_nothing_may_have_drawn_random_numbers(training: Training) -> None:
    assert training.left_after(lambda: None) is LeftStep.UNKNOWN
    assert training.left_after(training.compute) is LeftStep.UNKNOWN


def test_a_step_left_between_two_optimizers_is_none(training: Training) -> None:
    def half() -> None:
        training.compute()
        training.optimizers[0].step()

    assert training.left_after(half) is LeftStep.UNKNOWN


@pytest.mark.parametrize("missing", ["scheduler", "average"])
def test_so_is_a_step_left_before_its_scheduler_or_its_average(training: Training, missing: str) -> None:
    def all_but_one() -> None:
        training.compute()
        for optimizer in training.optimizers:
            optimizer.step()
        if missing != "scheduler":
            training.scheduler.step()
        if missing != "average":
            training.average.update_parameters(training.first)

    assert training.left_after(all_but_one) is LeftStep.UNKNOWN


def test_a_step_that_does_more_than_others_is_complete(training: Training) -> None:
    def body(step: int) -> None:
        training.compute()
        for optimizer in training.optimizers:
            optimizer.step()

    def end_of_epoch() -> None:
        body(STEPS)
        training.scheduler.step()
        training.average.update_parameters(training.first)

    assert training.left_after(end_of_epoch, body) is LeftStep.COMPLETE


def test_parts_may_be_trained_in_turn(training: Training) -> None:
    def body(step: int) -> None:
        training.compute()
        training.optimizers[step % 2].step()

    assert training.left_after(lambda: body(STEPS), body) is LeftStep.COMPLETE


def test_a_part_that_is_trained_in_every_other_step_is_missed_in_its_turn(training: Training) -> None:
    def half(step: int) -> None:
        training.compute()
        training.optimizers[0].step()

    def body(step: int) -> None:
        half(step)
        if step % 2 == STEPS % 2:
            training.optimizers[1].step()

    assert training.left_after(lambda: half(STEPS), body) is LeftStep.UNKNOWN


@pytest.mark.parametrize(("first", "verdict"), [(STEPS % 5, LeftStep.UNKNOWN), (STEPS % 5 + 1, LeftStep.COMPLETE)])
def test_a_step_that_lacks_its_average_is_none_though_averages_are_rare(
    training: Training, first: int, verdict: LeftStep
) -> None:
    def body(step: int) -> None:
        training.compute()
        for optimizer in training.optimizers:
            optimizer.step()
        if step % 5 == first and step != STEPS:
            training.average.update_parameters(training.first)

    assert training.left_after(lambda: body(STEPS), body) is verdict


def test_each_optimizer_is_looked_at_however_small_it_is() -> None:
    small, large = torch.nn.Linear(2, 1), torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(20)])
    of_small, of_large = SGD(small.parameters(), lr=0.1), SGD(large.parameters(), lr=0.1)
    tell = OpenStep({"small": small, "large": large, "of_small": of_small, "of_large": of_large})
    for step in range(STEPS):
        tell.begin(step)
        for model, optimizer in ((large, of_large), (small, of_small)):
            model(torch.ones(1, 2)).sum().backward()
            if (step, model) != (STEPS - 1, small):
                optimizer.step()
    tell.leave()
    assert tell.judge() is LeftStep.UNKNOWN


@pytest.mark.parametrize(("at", "verdict"), [(STEPS + 1, LeftStep.COMPLETE), (STEPS, LeftStep.UNKNOWN)])
def test_gradients_may_be_collected_over_steps(training: Training, at: int, verdict: LeftStep) -> None:
    def body(step: int) -> None:
        training.compute()
        if step % 4 == 3:
            for optimizer in training.optimizers:
                optimizer.step()

    assert training.left_after(lambda: body(at), body) is verdict


def test_a_scheduler_of_somebody_may_do_as_it_likes() -> None:
    class Raising:
        @property
        def last_epoch(self) -> int:
            raise RuntimeError("on purpose")

    class Fractional:
        last_epoch: float = 0

        def __init__(self) -> None:
            self.last_epoch = 0

    model, fractional = torch.nn.Linear(2, 1), Fractional()
    optimizer = SGD(model.parameters(), lr=0.1)
    tell = OpenStep({"optimizer": optimizer, "one": Raising(), "other": fractional})
    for step in range(STEPS):
        tell.begin(step)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        fractional.last_epoch += 0.5
    tell.leave()
    assert tell.judge() is LeftStep.COMPLETE


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_a_fused_optimizer_and_sharded_parameters_show_a_step(missing: bool, fused: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        model = torch.nn.Linear(2, 1)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        tell = OpenStep({"model": model, "optimizer": optimizer, "scheduler": StepLR(optimizer, step_size=3)})
        for step in range(STEPS):
            tell.begin(step)
            model(torch.ones(1, 2)).sum().backward()
            if not (missing and step == STEPS - 1):
                optimizer.step()
            tell._schedulers[0].step()
        tell.leave()
        assert tell.judge() is (LeftStep.UNKNOWN if missing else LeftStep.COMPLETE)
    finally:
        dist.destroy_process_group()


def test_a_scheduler_alone_is_no_witness() -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = SGD([parameter], lr=0.1)
    scheduler = SimpleNamespace(last_epoch=0)
    tell = OpenStep({"optimizer": optimizer, "scheduler": scheduler})
    for step in range(STEPS):
        tell.begin(step)
        parameter.data = parameter.data - 0.1  # no version counter shows it
        scheduler.last_epoch += 1
    tell.leave()
    assert tell.judge() is LeftStep.UNKNOWN


def test_a_fused_optimizer_shows_its_steps_after_its_state_was_loaded() -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    tell = OpenStep({"optimizer": optimizer})
    for step in range(STEPS):
        if step == 2:
            optimizer.load_state_dict(optimizer.state_dict())
        tell.begin(step)
        parameter.grad = torch.ones(2)
        optimizer.step()
    tell.leave()
    assert tell.judge() is LeftStep.COMPLETE


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
    training.whole_step(0)
    training.open.leave()
    assert training.open.judge() is LeftStep.UNKNOWN


def test_what_changes_after_the_loop_is_no_part_of_the_step(training: Training) -> None:
    assert training.left_after(lambda: training.whole_step(STEPS)) is LeftStep.COMPLETE
    training.first.load_state_dict(torch.nn.Linear(2, 1).state_dict())
    assert training.open.judge() is LeftStep.UNKNOWN


def test_a_loop_whose_iterator_lives_on_was_left_at_no_known_place(training: Training) -> None:
    for step in range(STEPS + 1):
        training.open.begin(step)
        training.whole_step(step)
    assert training.open.judge() is LeftStep.COMPLETE
    training.first.load_state_dict(torch.nn.Linear(2, 1).state_dict())
    assert training.open.judge() is LeftStep.UNKNOWN


def test_counters_that_never_show_a_step_are_no_witness(training: Training) -> None:
    assert training.left_after(lambda: None, lambda step: None) is LeftStep.UNKNOWN


def test_a_loop_that_ended_was_not_left(training: Training) -> None:
    training.left_after(lambda: training.whole_step(STEPS))
    training.open.step = -1
    assert training.open.judge() is LeftStep.NONE
