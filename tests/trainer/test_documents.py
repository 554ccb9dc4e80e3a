"""Documents in one sample: each is trained as if it were alone."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.data.batches import document_spans
from holdfast_trainer.model.transformer import Transformer
from tests.trainer.conftest import RunRanks
from tests.trainer.layouts import OPTIMIZER
from tests.trainer.world_of_one import whole_model

END = 7
RANKS_MODEL = {"dim": 32, "layers": 2, "heads": 8, "kv_heads": 4, "hidden": 48}
MODEL = ModelConfig.model_validate(RANKS_MODEL)
LENGTHS = [5, 1, 9, 17]
"""Tokens of each document. Only the last one has no end: the sample ends first."""


def model_of(sequence: int) -> Transformer:
    model = whole_model(MODEL, sequence)
    model.initialise(torch.device("cpu"), seed=3)
    return model


def packed_sample() -> tuple[Tensor, Tensor]:
    """Return inputs and targets of one sample with documents of these lengths."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(8, 256, (sum(LENGTHS) + 1,), generator=generator)
    for length in torch.tensor(LENGTHS[:-1]).cumsum(0).tolist():
        tokens[length - 1] = END
    return tokens[None, :-1], tokens[None, 1:]


def loss_of(model: Transformer, inputs: Tensor, targets: Tensor, spans: Tensor | None = None) -> Tensor:
    return functional.cross_entropy(model(inputs, spans).flatten(0, 1), targets.flatten(), reduction="sum")


def test_each_token_knows_where_its_document_begins() -> None:
    spans = document_spans(torch.tensor([[1, END, 2, 3, END, END, 4], [END, 5, 5, 5, 5, 5, END]]), END)
    assert spans[..., 0].tolist() == [[0, 0, 2, 2, 2, 5, 6], [0, 1, 1, 1, 1, 1, 1]]
    assert spans[..., 1].tolist() == [list(range(7))] * 2


def test_a_packed_sample_has_the_loss_and_gradients_of_its_documents_alone() -> None:
    inputs, targets = packed_sample()
    packed = model_of(inputs.shape[1])
    loss = loss_of(packed, inputs, targets, document_spans(inputs, END))
    loss.backward()  # type: ignore[no-untyped-call]
    alone = model_of(inputs.shape[1]).state_dict()
    total, gradients = torch.zeros(()), {name: torch.zeros_like(value) for name, value in alone.items()}
    documents = zip(torch.split(inputs, LENGTHS, dim=1), torch.split(targets, LENGTHS, dim=1), strict=True)
    for document, target in documents:
        single = model_of(document.shape[1])
        part = loss_of(single, document, target)
        part.backward()  # type: ignore[no-untyped-call]
        total += part.detach()
        for name, parameter in single.named_parameters():
            assert parameter.grad is not None
            gradients[name] += parameter.grad
    torch.testing.assert_close(loss.detach(), total, rtol=1e-6, atol=0)
    for name, parameter in packed.named_parameters():
        assert parameter.grad is not None
        wanted = gradients[name]
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_without_documents_the_same_sample_has_another_loss_unless_it_is_one_document() -> None:
    inputs, targets = packed_sample()
    model = model_of(inputs.shape[1])
    # No token of the sample has the id 3, so it is one document.
    apart, whole = (loss_of(model, inputs, targets, document_spans(inputs, end)) for end in (END, 3))
    together = loss_of(model, inputs, targets)
    assert not torch.isclose(apart, together, rtol=1e-4)
    torch.testing.assert_close(whole, together, rtol=1e-6, atol=0)


@pytest.mark.system
@pytest.mark.parametrize(
    ("ranks", "parallel", "settings"),
    [
        (2, {"tp": 2}, {}),
        (2, {"tp": 2, "sequence_parallel": False, "loss_parallel": False}, {}),
        (2, {"dp": 2, "microbatches": 2}, {}),
        (2, {"cp": 2}, {}),
        (4, {"cp": 2, "tp": 2, "zero": 1}, {}),
        (2, {"pp": 2, "microbatches": 2, "schedule": "gpipe"}, {}),
        (2, {"pp": 2, "microbatches": 4}, {}),
        (2, {"pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b"}, {}),
        (2, {"pp": 2, "microbatches": 4, "schedule": "zero-bubble"}, {}),
        (4, {"pp": 2, "cp": 2, "microbatches": 2}, {}),
        (2, {"cp": 2, "ep": 2}, {"experts": 4, "capacity_factor": 1.0}),
    ],
)
def test_layouts_keep_documents_apart_as_one_plain_process_does(
    run_ranks: RunRanks, ranks: int, parallel: dict[str, object], settings: dict[str, object]
) -> None:
    model = {**RANKS_MODEL, "layers": 4, **settings}
    run_ranks("sweep", ranks=ranks, model=model, parallel=parallel, data={"document_end": END}, optimizer=OPTIMIZER)


@pytest.mark.system
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_activation_checkpointing_keeps_documents_apart_bit_for_bit(run_ranks: RunRanks, checkpointing: str) -> None:
    memory = {"checkpointing": checkpointing}
    run_ranks("memory", ranks=2, model=RANKS_MODEL, parallel={"tp": 2}, memory=memory, data={"document_end": END})
