"""Checks of precision and memory options on several ranks. Each takes a configuration that fits the world."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import MemoryConfig
from holdfast_trainer.optimizer import make_optimizer, make_scheduler
from holdfast_trainer.parallel import parallelize
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.offload import offload_optimizer
from holdfast_trainer.pipeline.pipeline import Runner
from holdfast_trainer.precision.fp8 import convert_to_fp8
from holdfast_trainer.precision.loss_scaling import make_loss_scaler
from holdfast_trainer.update import Update, update_parameters
from tests.trainer.parity import CPU, share


class Rank:
    """This rank's part of a run, step by step."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.mesh = Mesh.create(config.parallel, "cpu")
        self.parts = parallelize.parallelize(config, self.mesh, CPU)
        self.optimizer = offload_optimizer(make_optimizer(self.parts.parameters(), config.optimizer), config.memory)
        self.scheduler = make_scheduler(self.optimizer, config.optimizer, steps=10)
        self.scaler = make_loss_scaler(config.precision, CPU)
        self.runner = Runner(config, self.mesh, self.parts, CPU, self.scaler)

    def forward_backward(self, index: int) -> Tensor | None:
        return self.runner.forward_backward(share(self.config, self.mesh, index))

    def update(self) -> Update:
        update = self.take_update()
        self.scheduler.step()
        return update

    def take_update(self) -> Update:
        return update_parameters(self.parts, self.optimizer, self.scaler, self.mesh, clip_norm=1.0, measured=False)

    def gradients(self) -> list[Tensor]:
        return [local(parameter.grad) for parameter in self.parts.parameters()]

    def weights(self) -> dict[str, Tensor]:
        return {name: local(parameter).clone() for name, parameter in self.parts.named_parameters()}

    def optimizer_steps(self) -> set[float]:
        return {state["step"].item() for state in self.optimizer.state.values()}


def local(tensor: Any) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()


def check_overflow(config: TrainerConfig) -> None:
    """Check that all ranks skip only the step in which one has an infinite gradient, and halve the scale."""
    rank = Rank(config)
    seen = []
    for step in range(3):
        before = rank.weights()
        with ruined_backward(rank) if step == 1 and is_last_rank() else nullcontext():
            rank.forward_backward(step)
        update = rank.update()
        assert update.overflow is not None and update.loss_scale is not None
        changed = any(not torch.equal(before[name], weight) for name, weight in rank.weights().items())
        seen.append((update.overflow.item(), changed, update.loss_scale.item()))
    scale = config.precision.loss_scale
    assert seen == [(False, True, scale), (True, False, scale), (False, True, scale / 2)]
    assert rank.optimizer_steps() == {2.0}


@contextmanager
def ruined_backward(rank: Rank) -> Iterator[None]:
    """Make the gradient that enters the backward pass of this rank's first block infinite."""

    def ruin(_block: nn.Module, _inputs: object, output: Tensor) -> None:
        output.register_hook(lambda gradient: gradient * torch.inf)  # type: ignore[no-untyped-call]

    first = next(iter(rank.parts.modules[0].layers.values()))
    handle = first.register_forward_hook(ruin)
    yield
    handle.remove()


def is_last_rank() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def check_memory_options(config: TrainerConfig) -> None:
    """Check that three steps end with the same bits as without the options."""
    weights = []
    for each in (config, config.model_copy(update={"memory": MemoryConfig()})):
        rank = Rank(each)
        for step in range(3):
            rank.forward_backward(step)
            rank.update()
        weights.append(rank.weights())
    for name, expected in weights[1].items():
        torch.testing.assert_close(weights[0][name], expected, rtol=0, atol=0, msg=name)


def check_fp8(config: TrainerConfig) -> None:
    """Check that with emulated fp8 all gradients are finite and the first loss is close to that of bf16."""
    losses = []
    emulated: dict[str, Any] = {"require_fp8": lambda _: None, "convert_to_fp8": partial(convert_to_fp8, emulate=True)}
    for precision in (config.precision, config.precision.model_copy(update={"fp8": False})):
        with patch.multiple(parallelize, **emulated):
            rank = Rank(config.model_copy(update={"precision": precision}))
        loss = rank.forward_backward(0)
        assert all(gradient.isfinite().all() for gradient in rank.gradients())
        losses.append(loss)
    if losses[0] is not None and losses[1] is not None:
        assert losses[0] != losses[1]
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-2, atol=0)
