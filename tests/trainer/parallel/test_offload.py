from collections.abc import Callable

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from holdfast_trainer.config_sections import MemoryConfig, PrecisionConfig
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.parallel.offload import move_buffers, offload_optimizer, state_device
from holdfast_trainer.precision.loss_scaling import LossScaler
from tests.trainer.world_of_one import adamw, loss_of, losses, small_config, small_model

OPTIMIZER = MemoryConfig(offload="optimizer")


pytestmark = pytest.mark.usefixtures("one_rank")


def sgd(model: Transformer) -> SGD:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def host_optimizer(optimizer: Optimizer) -> Optimizer:
    wrapped = offload_optimizer(optimizer, OPTIMIZER)
    assert wrapped is not optimizer
    return wrapped


def decaying(optimizer: Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1 / (1 + step))


def expect_equal(model: Transformer, expected: Transformer) -> None:
    for (name, parameter), other in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=0, msg=name)


def test_parameters_on_the_host_train_to_the_same_bits() -> None:
    plain, offloaded = small_model(small_config()), small_model(small_config(memory={"offload": "parameters"}))
    move_buffers(offloaded, torch.device("cpu"))
    assert losses(offloaded, adamw(offloaded), steps=4) == losses(plain, adamw(plain), steps=4)
    expect_equal(offloaded, plain)


@pytest.mark.parametrize("make", [adamw, sgd])
def test_optimizer_on_the_host_trains_to_the_same_bits_with_a_schedule(
    make: Callable[[Transformer], Optimizer],
) -> None:
    plain, offloaded = small_model(small_config()), small_model(small_config())
    optimizer, on_host = make(plain), host_optimizer(make(offloaded))
    schedules = [decaying(optimizer), decaying(on_host)]
    for _ in range(3):
        assert losses(offloaded, on_host, steps=1) == losses(plain, optimizer, steps=1)
        for schedule in schedules:
            schedule.step()
    assert on_host.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    expect_equal(offloaded, plain)


@pytest.mark.parametrize(("before", "after"), [("host", "host"), ("host", "device"), ("device", "host")])
def test_run_continues_from_the_state_of_either_kind_of_optimizer(before: str, after: str) -> None:
    kinds: dict[str, Callable[[Transformer], Optimizer]] = {
        "host": lambda model: host_optimizer(adamw(model)),
        "device": adamw,
    }
    whole, first, second = (small_model(small_config()) for _ in range(3))
    uninterrupted = losses(whole, adamw(whole), steps=4)
    optimizer, later = kinds[before](first), kinds[after](second)
    losses(first, optimizer, steps=2)
    later.load_state_dict(optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    assert losses(second, later, start=2, steps=2) == uninterrupted[2:]
    expect_equal(second, whole)


def test_overflow_skips_the_step_on_the_host() -> None:
    model, expected = small_model(small_config()), small_model(small_config())
    optimizer = host_optimizer(sgd(model))
    scaler = LossScaler(PrecisionConfig(compute="fp16"), torch.device("cpu"))
    loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
    scaler.judge(optimizer, torch.tensor(torch.inf))
    optimizer.step()
    expect_equal(model, expected)
    scaler.judge(optimizer, torch.tensor(1.0))
    optimizer.step()
    loss_of(expected, 0).backward()  # type: ignore[no-untyped-call]
    sgd(expected).step()
    expect_equal(model, expected)


def test_state_is_placed_where_the_configuration_says() -> None:
    gpu = torch.device("cuda", 0)
    assert state_device(MemoryConfig(), gpu) == gpu
    assert state_device(OPTIMIZER, gpu) == gpu
    assert state_device(MemoryConfig(offload="parameters"), gpu) == torch.device("cpu")


def test_without_offload_the_optimizer_is_left_alone() -> None:
    optimizer = adamw(small_model(small_config()))
    assert isinstance(optimizer, AdamW)
    assert offload_optimizer(optimizer, MemoryConfig()) is optimizer
