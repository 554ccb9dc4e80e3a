import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from holdfast_hooks import Hooks
from holdfast_trainer.optimizer import make_optimizer
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.parallelize import parallelize
from holdfast_trainer.precision.loss_scaling import make_loss_scaler
from holdfast_trainer.update import update_parameters
from tests.trainer.world_of_one import CPU, small_config, world_of_one


class Updates:
    """A model that gets an update with gradients of one value in each step."""

    def __init__(self, compute: str, should_update: Callable[[Tensor], bool]) -> None:
        config = small_config(optimizer={"warmup_steps": 2}, precision={"compute": compute})
        self._mesh = Mesh.create(config.parallel, "cpu")
        self.parts = parallelize(config, self._mesh, CPU)
        self.optimizer = make_optimizer(self.parts.parameters(), config.optimizer)
        self.scaler = make_loss_scaler(config.precision, CPU)
        self._should_update = should_update

    def step(self, value: float, *, measured: bool = False) -> bool:
        """Return whether the step has changed a weight."""
        for parameter in self.parts.parameters():
            parameter.grad = torch.full_like(parameter, value)
        before = self.weights()
        update = update_parameters(
            self.parts, self.optimizer, self.scaler, self._mesh,
            clip_norm=1.0, measured=measured, should_update=self._should_update,
        )  # fmt: skip
        changed = not torch.equal(before, self.weights())
        if measured:
            assert (update.update_norm is not None) == changed
        assert all(parameter.grad is None for parameter in self.parts.parameters())
        return changed

    def weights(self) -> Tensor:
        parameters = [one.to_local() for one in self.parts.parameters() if isinstance(one, DTensor)]
        return torch.cat([parameter.detach().flatten().clone() for parameter in parameters])


@pytest.mark.parametrize("measured", [False, True])
def test_an_update_that_the_check_refuses_changes_no_weight(measured: bool) -> None:
    answers = iter([True, False, True])
    with world_of_one():
        updates = Updates("fp32", lambda norm: next(answers))
        changed = [updates.step(1.0, measured=measured) for _ in range(3)]
    assert changed == [True, False, True]


def test_in_fp16_the_scale_falls_at_an_overflow_alone_and_both_skip() -> None:
    hooks = Hooks.unattached()
    with world_of_one():
        updates = Updates("fp16", hooks.should_update)
        assert updates.scaler is not None
        scales, changed = [], []
        for value in [1e3] * 16 + [math.inf, 1e6, 1e3]:
            changed.append(updates.step(value))
            scales.append(math.log2(updates.scaler.scale.item()))
    assert changed == [True] * 16 + [False, False, True]
    assert scales == [16.0] * 16 + [15.0, 15.0, 15.0]
