from functools import partial

import pytest
import torch
from torch import nn

from holdfast_trainer.config_sections import OptimizerConfig
from holdfast_trainer.optimizer import learning_rate_factor, make_optimizer, make_scheduler


def test_learning_rate_rises_to_the_highest_and_falls_to_the_floor() -> None:
    factor = partial(learning_rate_factor, steps=100, warmup_steps=10, floor=0.1)
    factors = [factor(step) for step in range(100)]
    assert factors[:10] == sorted(factors[:10])
    assert 0 < factors[0] < factors[9] < factors[10] == 1.0
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[99] == pytest.approx(0.1)
    assert factor(150) == pytest.approx(0.1)


@pytest.mark.parametrize(("steps", "warmup_steps"), [(1, 0), (5, 5), (3, 10)])
def test_short_runs_have_a_learning_rate(steps: int, warmup_steps: int) -> None:
    factors = [learning_rate_factor(step, steps=steps, warmup_steps=warmup_steps, floor=0.1) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_only_matrices_are_decayed(name: str) -> None:
    linear, norm = nn.Linear(2, 2), nn.RMSNorm(2)
    model = nn.Sequential(linear, norm)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    config = OptimizerConfig.model_validate({"name": name, "learning_rate": 0.5, "weight_decay": 0.1})
    make_optimizer(model.parameters(), config).step()
    torch.testing.assert_close(linear.weight, before["0.weight"] * 0.95)
    assert torch.equal(linear.bias, before["0.bias"]) and torch.equal(norm.weight, before["1.weight"])


def test_sgd_steps_against_the_running_sum_of_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2))
    config = OptimizerConfig(name="sgd", learning_rate=0.5, momentum=0.5, weight_decay=0.0)
    optimizer = make_optimizer([parameter], config)
    for _ in range(2):
        parameter.grad = torch.ones(2)
        optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((2,), 1 - 0.5 * (1 + 1.5)))


def test_schedule_continues_from_its_saved_state() -> None:
    config = OptimizerConfig(warmup_steps=2)

    def fresh() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        optimizer = make_optimizer(nn.Linear(2, 2).parameters(), config)
        return optimizer, make_scheduler(optimizer, config, steps=10)

    optimizer, scheduler = fresh()
    rates = []
    for step in range(10):
        if step == 4:
            saved = (optimizer.state_dict(), scheduler.state_dict())
            optimizer, scheduler = fresh()
            optimizer.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    expected = [3e-3 * learning_rate_factor(step, steps=10, warmup_steps=2, floor=0.1) for step in range(10)]
    assert rates == pytest.approx(expected)
