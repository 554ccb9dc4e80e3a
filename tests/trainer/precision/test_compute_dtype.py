from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast_trainer.precision.compute_dtype import compute_dtype
from tests.trainer.world_of_one import adamw, loss_of, losses, small_config, small_model

pytestmark = pytest.mark.usefixtures("one_rank")


def input_dtypes(model: nn.Module, kind: type[nn.Module]) -> list[set[torch.dtype]]:
    """Collect, for each module of a ``kind``, what enters it from now on."""
    seen: list[set[torch.dtype]] = []
    for module in model.modules():
        if isinstance(module, kind):
            seen.append(set())

            def note(_: nn.Module, inputs: tuple[Tensor, ...], dtypes: set[torch.dtype] = seen[-1]) -> None:
                dtypes.add(inputs[0].dtype)

            module.register_forward_pre_hook(note)
    return seen


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_model_computes_in_the_small_type_and_keeps_weights_gradients_state_and_logits_in_fp32(compute: Any) -> None:
    config = small_config(precision={"compute": compute})
    model = small_model(config)
    optimizer = adamw(model)
    products = input_dtypes(model, nn.Linear)
    loss = loss_of(model, 0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert products == [{compute_dtype(config.precision)}] * len(products)
    assert loss.dtype == torch.float32
    for parameter in model.parameters():
        assert isinstance(parameter.grad, DTensor)
        assert (parameter.dtype, parameter.grad.dtype) == (torch.float32, torch.float32)
    optimizer.step()
    for state in optimizer.state.values():
        assert {value.dtype for value in state.values()} == {torch.float32}


@pytest.mark.parametrize(("compute", "tolerance"), [("bf16", 0.02), ("fp16", 0.003)])
def test_run_in_the_small_type_learns_as_one_in_fp32_does(compute: str, tolerance: float) -> None:
    curves = []
    for each in ("fp32", compute):
        model = small_model(small_config(precision={"compute": each}))
        curves.append(torch.tensor(losses(model, adamw(model), steps=40)))
    exact, rounded = curves
    assert exact[-1] < 0.6 * exact[0]
    torch.testing.assert_close(rounded, exact, rtol=tolerance, atol=0)
