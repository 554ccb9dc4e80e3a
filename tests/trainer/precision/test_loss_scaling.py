import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from holdfast_trainer.config_sections import PrecisionConfig
from holdfast_trainer.precision import skipped_step
from holdfast_trainer.precision.loss_scaling import LossScaler, make_loss_scaler
from holdfast_trainer.precision.skipped_step import SkippingSGD

CPU = torch.device("cpu")
FP16 = PrecisionConfig(compute="fp16", loss_scale=1024.0, loss_scale_interval=3)
NORM, OVERFLOW, UNDEFINED = torch.tensor(1.0), torch.tensor(torch.inf), torch.tensor(torch.nan)


def linear_with_gradient() -> nn.Linear:
    layer = nn.Linear(2, 2)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    return layer


def optimizers(layer: nn.Linear) -> list[Optimizer]:
    plain, momentum = SkippingSGD(layer.parameters()), SkippingSGD(layer.parameters(), momentum=0.9)
    return [AdamW(layer.parameters(), fused=True), momentum, plain]


def judge(scaler: LossScaler, optimizer: Optimizer, norms: list[Tensor]) -> list[float]:
    scales = []
    for norm in norms:
        scaler.judge(optimizer, norm)
        scales.append(scaler.scale.item())
    return scales


def test_only_fp16_is_scaled() -> None:
    assert make_loss_scaler(PrecisionConfig(compute="bf16"), CPU) is None
    assert make_loss_scaler(FP16, CPU) is not None


def test_loss_keeps_its_value_and_its_gradient_is_scaled() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    loss = LossScaler(FP16, CPU).scale_gradient(2 * weight)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 6.0
    assert weight.grad is not None
    assert weight.grad.item() == 2 * 1024.0


def test_scale_halves_on_overflow_and_doubles_after_an_interval_without() -> None:
    optimizer = AdamW(linear_with_gradient().parameters(), fused=True)
    norms = [OVERFLOW, NORM, NORM, UNDEFINED, *[NORM] * 6]
    assert judge(LossScaler(FP16, CPU), optimizer, norms) == [512, 512, 512, 256, 256, 256, 512, 512, 512, 1024]


def test_scale_stays_within_its_bounds() -> None:
    optimizer = AdamW(linear_with_gradient().parameters(), fused=True)
    assert judge(LossScaler(FP16, CPU), optimizer, [OVERFLOW] * 12)[-1] == 1.0
    eager = PrecisionConfig(compute="fp16", loss_scale=2.0**31, loss_scale_interval=1)
    assert judge(LossScaler(eager, CPU), optimizer, [NORM] * 3)[-1] == 2.0**32


@pytest.mark.parametrize("which", [0, 1, 2], ids=["adamw", "sgd-momentum", "sgd"])
def test_overflow_skips_one_step_as_if_it_had_not_been(which: int) -> None:
    layer, twin = linear_with_gradient(), linear_with_gradient()
    twin.load_state_dict(layer.state_dict())
    scaler, optimizer, plain = LossScaler(FP16, CPU), optimizers(layer)[which], optimizers(twin)[which]
    for overflows in (True, False, True, False):
        assert scaler.judge(optimizer, OVERFLOW if overflows else NORM).item() is overflows
        optimizer.step()
        if not overflows:
            plain.step()
        for parameter, expected in zip(layer.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected, rtol=0, atol=0)


def test_scale_continues_from_its_saved_state_of_plain_numbers() -> None:
    optimizer = AdamW(linear_with_gradient().parameters(), fused=True)
    scaler, later = LossScaler(FP16, CPU), LossScaler(FP16, CPU)
    judge(scaler, optimizer, [OVERFLOW, NORM, NORM])
    saved = scaler.state_dict()
    assert saved == {"scale": 512.0, "good_steps": 2}
    kept = later.scale
    later.load_state_dict(saved)
    assert kept.item() == 512.0
    assert judge(later, optimizer, [NORM]) == [1024.0]


def test_without_a_skip_on_the_device_the_step_is_skipped_on_the_host_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As if torch had renamed the private attribute that says so."""
    layer = linear_with_gradient()
    optimizer = AdamW(layer.parameters(), fused=True)
    del optimizer._step_supports_amp_scaling
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    skipped_step._warn_of_wait.cache_clear()
    for _ in range(2):
        LossScaler(FP16, CPU).judge(optimizer, OVERFLOW)
        optimizer.step()
    assert all(torch.equal(old, new) for old, new in zip(before, layer.parameters(), strict=True))
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    LossScaler(FP16, CPU).judge(optimizer, NORM)
    optimizer.step()
    assert not any(torch.equal(old, new) for old, new in zip(before, layer.parameters(), strict=True))
    [line] = caplog.messages
    assert line == f"AdamW of torch {torch.__version__} skips no step on the device: each fp16 step waits for it"
