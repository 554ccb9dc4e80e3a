from typing import Any

import pytest
import torch

from holdfast_hooks import by_name, merged
from holdfast_hooks.state.encoding import Stateful, encode_state


class Stage(torch.nn.Module):
    def __init__(self, **parts: torch.nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def trained(*stages: torch.nn.Module, learning_rate: float = 0.1) -> torch.optim.AdamW:
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
        {"params": [parameter for parameter in parameters if parameter.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def test_states_have_the_parameters_names_and_groups_hold_names() -> None:
    stages = Stage(first=torch.nn.Linear(2, 3)), Stage(second=torch.nn.Linear(3, 2, bias=False))
    state = by_name(trained(*stages), stages).state_dict()
    assert sorted(state["state"]) == ["first.bias", "first.weight", "second.weight"]
    assert [group["params"] for group in state["groups"]] == [["first.weight", "second.weight"], ["first.bias"]]
    names = [part.name for part in encode_state({"optimizer": state}).parts]
    assert "optimizer/state/first.weight/exp_avg" in names


def test_state_is_live_and_not_copied() -> None:
    stage = Stage(first=torch.nn.Linear(2, 3))
    optimizer = trained(stage)
    state = by_name(optimizer, stage).state_dict()
    assert state["state"]["first.weight"]["exp_avg"] is optimizer.state[stage.get_parameter("first.weight")]["exp_avg"]


def test_state_comes_back_into_an_optimizer_that_orders_parameters_otherwise() -> None:
    stage = Stage(first=torch.nn.Linear(2, 3), second=torch.nn.Linear(3, 2))
    saved = by_name(trained(stage, learning_rate=0.3), stage).state_dict()
    other = Stage(second=torch.nn.Linear(3, 2), first=torch.nn.Linear(2, 3))
    optimizer = trained(other)
    by_name(optimizer, other).load_state_dict(saved)
    for name, parameter in other.named_parameters():
        for key, value in saved["state"][name].items():
            assert torch.equal(optimizer.state[parameter][key], value), (name, key)
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.3]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]


def test_names_are_those_of_the_model_without_wrappers() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    stage = Stage(first=checkpoint_wrapper(torch.nn.Linear(2, 3)))
    assert sorted(by_name(trained(stage), stage).state_dict()["state"]) == sorted(stage.state_dict())


def test_modules_that_cannot_be_distinguished_are_refused() -> None:
    stages = [Stage(first=torch.nn.Linear(2, 3)), Stage(first=torch.nn.Linear(2, 3))]
    with pytest.raises(ValueError, match=r"two parameters have the same name"):
        by_name(trained(*stages), stages)
    with pytest.raises(ValueError, match=r"2 modules have a first\.weight"):
        merged(stages)
    with pytest.raises(ValueError, match="pass all modules"):
        by_name(trained(*stages), stages[:1])


def test_other_number_of_groups_is_refused() -> None:
    stage = Stage(first=torch.nn.Linear(2, 3))
    saved = by_name(trained(stage), stage).state_dict()
    with pytest.raises(ValueError, match="2 parameter groups were saved, here are 1"):
        by_name(torch.optim.SGD(stage.parameters()), stage).load_state_dict(saved)


def test_merged_modules_are_one_state_that_comes_back() -> None:
    stages = [Stage(first=torch.nn.Linear(2, 3)), Stage(second=torch.nn.BatchNorm1d(3))]
    both = merged(stages)
    assert isinstance(both, Stateful)
    state = {name: value.clone() for name, value in both.state_dict().items()}
    assert "second.running_mean" in state
    others = [Stage(first=torch.nn.Linear(2, 3)), Stage(second=torch.nn.BatchNorm1d(3))]
    merged(others).load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in merged(others).state_dict().items())
