import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.session_pb2 import StepRecord

Launch = Callable[..., RankContext]


class Spoil(torch.autograd.Function):
    """A function that does nothing forward, and gives a gradient with one NaN backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        spoilt: torch.Tensor = gradients[0].clone()
        spoilt[0, 0] = math.nan
        return spoilt


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


def origins(agent: Any) -> list[str]:
    steps: list[StepRecord] = agent.steps
    assert len(steps) == 3
    return [step.nonfinite_origin.module for step in steps]


def blocks(number: int = 3) -> dict[str, Block]:
    return {f"block{index}": Block() for index in range(number)}


@pytest.mark.parametrize("name", ["block0", "block1", "block2"])
def test_the_block_that_made_a_gradient_bad_is_named_in_that_step_alone(agent: Any, launch: Launch, name: str) -> None:
    launch()
    train(blocks(), bad_in_step={1: name})
    assert origins(agent) == ["", name, ""]
    bad = agent.steps[1]
    assert bad.ended_unix_s - bad.duration_s - 1 < bad.nonfinite_origin.unix_s <= bad.ended_unix_s + 1
    assert not agent.steps[0].HasField("nonfinite_origin")


def test_of_a_long_chain_the_part_is_named(agent: Any, launch: Launch) -> None:
    launch()
    train(blocks(10), bad_in_step={1: "block5"})
    assert origins(agent) == ["", "block4 to block6", ""]


def test_a_gradient_that_is_bad_from_the_start_is_the_losss(agent: Any, launch: Launch) -> None:
    launch()
    train(blocks(), bad_in_step={2: "loss"})
    assert origins(agent) == ["", "", "loss"]


def test_a_bad_gradient_from_another_rank_is_not_reported_again(agent: Any, launch: Launch) -> None:
    launch()
    train(blocks(), bad_in_step={0: "loss", 1: "block1"}, then=None)
    assert origins(agent) == ["", "block1", ""]


def test_nothing_stays_on_the_modules(agent: Any, launch: Launch) -> None:
    launch()
    model = blocks()
    train(model, bad_in_step={})
    assert [len(block._forward_hooks) + len(block._forward_pre_hooks) for block in model.values()] == [0, 0, 0]


def test_without_an_agent_modules_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = blocks()
    with holdfast_hooks.attach() as hooks:
        hooks.watch_gradients(model)
        assert not any(block._forward_hooks for block in model.values())
