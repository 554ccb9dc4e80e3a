import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from holdfast_trainer.data.batches import IGNORED
from holdfast_trainer.pipeline.cross_entropy import vocabulary_parallel_cross_entropy


@pytest.mark.usefixtures("one_rank")
def test_ignored_targets_add_exactly_nothing_to_the_loss_and_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(6, 11, generator=generator), torch.randint(11, (6,), generator=generator)
    ignored = torch.tensor([False, True, False, False, True, True])
    loss, gradient = loss_and_gradient(logits, targets.masked_fill(ignored, IGNORED))
    torch.testing.assert_close(loss, functional.cross_entropy(logits[~ignored], targets[~ignored], reduction="sum"))
    assert not gradient[ignored].any()
    assert torch.equal(gradient[~ignored], loss_and_gradient(logits, targets)[1][~ignored])
    assert loss_and_gradient(logits, torch.full_like(targets, IGNORED))[0] == 0


def loss_and_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    assert dist.group.WORLD is not None
    loss = vocabulary_parallel_cross_entropy(leaf, targets, dist.group.WORLD)
    loss.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return loss.detach(), leaf.grad
