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

END = 7
MODEL = ModelConfig(dim=32, layers=2, heads=8, kv_heads=4, hidden=48)
LENGTHS = [5, 1, 9, 17]
"""Tokens of each document. Only the last one has no end: the sample ends first."""


def model_of(sequence: int) -> Transformer:
    model = Transformer(MODEL, positions=torch.arange(sequence), layers=range(2), first=True, last=True)
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


def test_without_documents_the_same_sample_has_another_loss() -> None:
    inputs, targets = packed_sample()
    model = model_of(inputs.shape[1])
    apart, together = loss_of(model, inputs, targets, document_spans(inputs, END)), loss_of(model, inputs, targets)
    assert not torch.isclose(apart, together, rtol=1e-4)


def test_a_sample_of_one_document_is_a_sample_without_documents() -> None:
    inputs, targets = packed_sample()
    model = model_of(inputs.shape[1])
    whole = document_spans(inputs, end=3)  # an id that the sample does not have
    with_spans, without = loss_of(model, inputs, targets, whole), loss_of(model, inputs, targets)
    torch.testing.assert_close(with_spans, without, rtol=1e-6, atol=0)


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
    run_ranks(
        "sweep",
        ranks=ranks,
        model={"dim": 32, "layers": 4, "heads": 8, "kv_heads": 4, "hidden": 48, **settings},
        parallel=parallel,
        data={"sequence": 16, "document_end": END},
        train={"global_batch": 8},
        optimizer=OPTIMIZER,
    )


@pytest.mark.system
@pytest.mark.parametrize("memory", [{"checkpointing": "selective"}, {"checkpointing": "full"}])
def test_activation_checkpointing_keeps_documents_apart_bit_for_bit(
    run_ranks: RunRanks, memory: dict[str, object]
) -> None:
    run_ranks(
        "memory",
        ranks=2,
        model={"dim": 32, "layers": 2, "heads": 8, "kv_heads": 4, "hidden": 48},
        parallel={"tp": 2},
        memory=memory,
        data={"sequence": 16, "document_end": END},
        train={"global_batch": 8},
    )
