import pytest
import torch

from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.model.transformer import Transformer, rotary_table, rotate

CPU = torch.device("cpu")
CONFIG = ModelConfig(dim=32, layers=3, heads=4, kv_heads=2, hidden=48)


def build(
    config: ModelConfig = CONFIG, *, layers: range = range(3), first: bool = True, last: bool = True, seed: int = 1
) -> Transformer:
    model = Transformer(config, positions=torch.arange(16), layers=layers, first=first, last=last)
    model.initialise(CPU, seed=seed)
    return model


def tokens() -> torch.Tensor:
    return torch.arange(32).reshape(2, 16) * 7


def test_logits_do_not_depend_on_later_tokens() -> None:
    model = build()
    changed = tokens()
    changed[:, 10:] = 0
    before, after = model(tokens()), model(changed)
    assert before.shape == (2, 16, 256)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_stages_one_after_the_other_are_the_whole_model() -> None:
    first = build(layers=range(2), last=False)
    second = build(layers=range(2, 3), first=False)
    assert torch.equal(second(first(tokens())), build()(tokens()))


def test_stages_have_the_parameters_of_the_whole_model_under_the_same_names() -> None:
    whole = build().state_dict()
    parts = build(layers=range(2), last=False).state_dict() | build(layers=range(2, 3), first=False).state_dict()
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_initial_weights_are_those_of_the_seed() -> None:
    first, second, other = build().state_dict(), build().state_dict(), build(seed=2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_no_two_matrices_start_alike() -> None:
    matrices = [parameter.flatten()[:8] for parameter in build().parameters() if parameter.ndim > 1]
    assert len({tuple(matrix.tolist()) for matrix in matrices}) == len(matrices)


def test_tied_head_is_the_embedding() -> None:
    model = build(CONFIG.model_copy(update={"tied": True}))
    assert model.head is not None and model.embedding is not None
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in dict(model.named_parameters())


@pytest.mark.parametrize("shift", [1, 5])
def test_rotated_heads_only_see_how_far_apart_they_are(shift: int) -> None:
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    rotation = rotary_table(CONFIG, torch.arange(16))
    queries = rotate(query.expand(1, 1, 16, 8), rotation)[0, 0]
    keys = rotate(key.expand(1, 1, 16, 8), rotation)[0, 0]
    products = (queries[shift:] * keys[:-shift]).sum(dim=-1)
    torch.testing.assert_close(products, products[:1].expand_as(products))
    assert not torch.allclose(products[0], query @ key)


def test_experts_of_a_stack_start_apart_and_as_a_feed_forward_part_does() -> None:
    model = build(ModelConfig(dim=32, layers=3, heads=4, kv_heads=2, hidden=48, experts=4))
    weights = dict(model.named_parameters())
    dense = dict(build().named_parameters())
    for name in ("gate", "up", "output"):
        stack = weights[f"layers.1.feed_forward.experts.{name}"]
        like = dense[f"layers.1.feed_forward.{name}.weight"]
        assert stack.shape == (4, *like.shape)
        assert not torch.equal(stack[0], stack[1])
        torch.testing.assert_close(stack.std(), like.std(), rtol=0.1, atol=0)
