from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import FlopCounterMode

from holdfast_trainer.model.transformer import Transformer
from tests.trainer.world_of_one import MODEL, adamw, loss_of, losses, small_config, small_model

pytestmark = pytest.mark.usefixtures("one_rank")


def model_with(**memory: Any) -> Transformer:
    return small_model(small_config(memory=memory))


def gradients(model: Transformer) -> dict[str, Tensor]:
    loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
    found = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        found[name] = parameter.grad.to_local()
    return found


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_names_weights_and_gradients_are_bit_by_bit_those_without(checkpointing: str) -> None:
    plain, thrifty = model_with(), model_with(checkpointing=checkpointing)
    assert list(thrifty.state_dict()) == list(plain.state_dict())
    expected, found = gradients(plain), gradients(thrifty)
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=0, msg=name)


def test_full_repeats_the_products_and_selective_does_not() -> None:
    counted = {}
    for checkpointing in ("none", "selective", "full"):
        model = model_with(checkpointing=checkpointing)
        with FlopCounterMode(display=False) as counter:
            gradients(model)
        counted[checkpointing] = counter.get_total_flops()
    assert counted["selective"] == counted["none"]
    assert counted["full"] > counted["none"]


@pytest.mark.soak
@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_compiled_blocks_keep_their_names_and_learn_alike(checkpointing: str, experts: int) -> None:
    model = {**MODEL, "experts": experts}
    plain = small_model(small_config(model=model))
    compiled = small_model(small_config(model=model, memory={"compile": True, "checkpointing": checkpointing}))
    assert list(compiled.state_dict()) == list(plain.state_dict())
    expected = losses(plain, adamw(plain), steps=4)
    assert losses(compiled, adamw(compiled), steps=4) == pytest.approx(expected, rel=1e-5)
