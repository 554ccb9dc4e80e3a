import math
from typing import Any

import pytest
import torch

import holdfast_hooks
from tests.trainer_hooks.telemetry.test_bad_gradients import Spoil


class Block(torch.nn.Module):
    """A layer that spoils the gradient while ``is_bad``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.is_bad = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        y = self.layer(x)
        return (Spoil.apply(y) if self.is_bad else y), "not a tensor"  # type: ignore[no-untyped-call]


def train(model: dict[str, Block], *, bad_in_step: dict[int, str], **watch: Any) -> None:
    """Train three steps under an agent. The named block spoils the gradient in the given step."""
    with holdfast_hooks.attach() as hooks:
        hooks.watch_gradients(model, **watch)
        for step in hooks.steps(until=3):
            x = torch.ones(2, 4, requires_grad=True)
            for name, block in model.items():
                block.is_bad = bad_in_step.get(step) == name
                x, _ = block(x)
            loss = x.sum()
            (loss * math.inf if bad_in_step.get(step) == "loss" else loss).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        next(iter(model.values()))(torch.ones(1, 4))


def blocks(number: int = 3) -> dict[str, Block]:
    return {f"block{index}": Block() for index in range(number)}


@pytest.mark.parametrize(
    ("number", "bad_in_step", "origins"),
    [
        (3, {1: "block0"}, ["", "block0", ""]),
        (3, {1: "block1"}, ["", "block1", ""]),
        (3, {1: "block2"}, ["", "block2", ""]),
        (10, {1: "block5"}, ["", "block4 to block6", ""]),
        (3, {2: "loss"}, ["", "", "loss"]),
        (3, {0: "loss", 1: "block1"}, ["", "block1", ""]),
    ],
    ids=["first", "middle", "last", "in a long chain", "loss", "after another rank's"],
)
def test_the_part_that_made_a_gradient_bad_is_named_in_that_step_alone(
    agent: Any, launched: object, number: int, bad_in_step: dict[int, str], origins: list[str]
) -> None:
    train(blocks(number), bad_in_step=bad_in_step, **({"then": None} if 0 in bad_in_step else {}))
    assert [step.nonfinite_origin.module for step in agent.steps] == origins
    bad = agent.steps[max(bad_in_step)]
    assert bad.ended_unix_s - bad.duration_s - 1 < bad.nonfinite_origin.unix_s <= bad.ended_unix_s + 1
    assert not agent.steps[0].HasField("nonfinite_origin")


def test_nothing_stays_on_the_modules(agent: Any, launched: object) -> None:
    model = blocks()
    train(model, bad_in_step={})
    assert [len(block._forward_hooks) + len(block._forward_pre_hooks) for block in model.values()] == [0, 0, 0]


def test_without_an_agent_modules_are_left_alone() -> None:
    model = blocks()
    with holdfast_hooks.attach() as hooks:
        hooks.watch_gradients(model)
        assert not any(block._forward_hooks for block in model.values())
