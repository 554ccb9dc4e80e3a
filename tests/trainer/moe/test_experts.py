from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.moe.balance import collect_expert_statistics, weigh_balance_loss
from holdfast_trainer.moe.experts import Experts, MixtureOfExperts, can_group, grouped_swiglu, rows_per_expert, swiglu

CONFIG = ModelConfig(dim=16, hidden=24, experts=4, experts_per_token=2)
SAMPLES, SEQUENCE = 3, 8


def mixture(**settings: float) -> MixtureOfExperts:
    torch.manual_seed(0)
    module = MixtureOfExperts(CONFIG.model_copy(update=settings))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def tokens() -> Tensor:
    return torch.randn(SAMPLES, SEQUENCE, CONFIG.dim, generator=torch.Generator().manual_seed(1))


def one_by_one(module: MixtureOfExperts, x: Tensor, capacity: int) -> tuple[Tensor, int]:
    """Return the output and the number of dropped picks, computed token by token."""
    output, dropped = torch.zeros_like(x), 0
    gate, up, down = module.experts.gate, module.experts.up, module.experts.output
    for sample in range(len(x)):
        taken = [0] * CONFIG.experts
        for position in range(x.shape[1]):
            token = x[sample, position]
            best, chosen = (module.router.weight @ token).softmax(dim=0).topk(CONFIG.experts_per_token)
            for weight, expert in zip(best / best.sum(), chosen.tolist(), strict=True):
                if taken[expert] == capacity:
                    dropped += 1
                    continue
                taken[expert] += 1
                output[sample, position] += weight * swiglu(token, gate[expert], up[expert], down[expert])
    return output, dropped


@torch.no_grad()
def test_a_token_gets_the_weighted_sum_of_its_experts() -> None:
    module = mixture()
    expected, _ = one_by_one(module, tokens(), capacity=SEQUENCE)
    torch.testing.assert_close(module(tokens()), expected)


@pytest.mark.parametrize(("capacity_factor", "capacity"), [(0.5, 2), (0.9, 4), (1.0, 4)])
def test_a_full_expert_drops_the_later_tokens_of_a_sequence(capacity_factor: float, capacity: int) -> None:
    module = mixture(capacity_factor=capacity_factor)
    output = module(tokens())
    expected, dropped = one_by_one(module, tokens(), capacity)
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    assert dropped > 0
    assert collect_expert_statistics(module)[0, 1] == dropped


@torch.no_grad()
def test_a_sequence_is_treated_alike_in_any_microbatch() -> None:
    module = mixture(capacity_factor=0.5)
    parts = [module(part) for part in torch.split(tokens(), 1)]
    torch.testing.assert_close(module(tokens()), torch.cat(parts))


def balance_losses(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return the balance losses as the paper writes them, one sequence at a time. Shape: [samples]."""
    losses = []
    for sample in range(len(probabilities)):
        shares = torch.stack([(chosen[sample] == expert).float().mean() for expert in range(CONFIG.experts)])
        losses.append(CONFIG.experts * (shares * probabilities[sample].mean(dim=0)).sum())
    return torch.stack(losses)


@pytest.mark.parametrize("loss_scale", [None, 1024.0])
def test_the_balance_loss_is_minimised_along_and_changes_no_value(loss_scale: float | None) -> None:
    module, coefficient, factor = mixture(), 0.7, loss_scale or 1.0
    module.balance.coefficient = coefficient
    weigh_balance_loss(module, sequences=6, loss_scale=None if loss_scale is None else torch.tensor(loss_scale))
    x = tokens().requires_grad_()
    module(x).square().sum().mul(factor).backward()
    found = [x.grad, *(parameter.grad for parameter in module.parameters())]

    module.balance.coefficient = 0.0
    routing = module.router(x)
    losses = balance_losses(routing.probabilities, routing.chosen)
    total = module(x).square().sum() + coefficient * losses.sum() / 6
    expected = torch.autograd.grad(total * factor, [x, *module.parameters()])
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))


def test_the_balance_loss_is_1_when_experts_are_used_alike_and_experts_over_k_at_worst() -> None:
    module = mixture()
    torch.nn.init.zeros_(module.router.weight)
    module(tokens()).sum().backward()
    assert collect_expert_statistics(module)[0, 0] == SAMPLES
    with torch.no_grad():
        module.router.weight[:2] = 100
    module(tokens().abs()).sum().backward()
    expected = SAMPLES * CONFIG.experts / CONFIG.experts_per_token
    assert collect_expert_statistics(module)[0, 0] == pytest.approx(expected)


def through_checkpoint(module: MixtureOfExperts, x: Tensor) -> Tensor:
    output = checkpoint(module, x, use_reentrant=False)
    assert isinstance(output, Tensor)
    return output


@pytest.mark.parametrize("forward", [MixtureOfExperts.__call__, through_checkpoint], ids=["once", "recomputed"])
def test_statistics_count_each_backward_pass_once_and_start_anew_when_collected(
    forward: Callable[[MixtureOfExperts, Tensor], Tensor],
) -> None:
    module = mixture(capacity_factor=0.5)
    x = tokens().requires_grad_()
    forward(module, x).sum().backward()  # type: ignore[no-untyped-call]
    once = collect_expert_statistics(module)
    with torch.no_grad():
        module(x)
    for _ in range(2):
        forward(module, x).sum().backward()  # type: ignore[no-untyped-call]
    assert once.shape == (1, 2) and (once > 0).all()
    torch.testing.assert_close(collect_expert_statistics(module), 2 * once)
    assert torch.equal(collect_expert_statistics(module), torch.zeros(1, 2))


@pytest.mark.parametrize("counts", [[3, 0, 9, 1], [0, 0, 0, 0], [8, 8, 8, 8]])
def test_grouped_products_do_what_a_loop_over_the_experts_does(counts: list[int]) -> None:
    module = Experts(CONFIG)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows = torch.randn(sum(counts) + 5, CONFIG.dim, requires_grad=True)
    weights = [module.gate, module.up, module.output]
    assert not can_group(rows, module.gate), "on a CPU the experts take the loop"
    looped = module(rows, torch.tensor(counts))
    grouped = grouped_swiglu(rows, torch.tensor(counts), *weights)
    torch.testing.assert_close(grouped, looped)
    assert torch.equal(grouped[sum(counts) :], torch.zeros(5, CONFIG.dim))
    gradients = [torch.autograd.grad(output.square().sum(), [rows, *weights]) for output in (grouped, looped)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_rows_are_counted_for_experts_without_any_too() -> None:
    assert rows_per_expert(torch.tensor([1, 1, 2, 4, 4, 4]), 4).tolist() == [0, 2, 1, 0]
