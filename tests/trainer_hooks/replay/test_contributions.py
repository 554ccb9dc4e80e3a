from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast_hooks.replay.contributions import Contributions
from holdfast_hooks.replay.culprits import Trace

RANK = 1


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """This process is one of four ranks, whose calls end at once and move nothing."""
    dist.init_process_group("fake", rank=RANK, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def traced(call: Callable[[torch.Tensor, torch.Tensor], Any], given: float, received: float) -> Trace:
    found = Contributions()
    with found:
        call(torch.full((4,), given), torch.full((4,), received))
    return found.trace()


def split(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(tensor.chunk(4))


def batch(given: torch.Tensor, received: torch.Tensor) -> None:
    dist.batch_isend_irecv([dist.P2POp(dist.isend, given, 2), dist.P2POp(dist.irecv, received, 0)])


def functional_sum(given: torch.Tensor, received: torch.Tensor) -> None:
    (functional.all_reduce(given, "sum", dist.group.WORLD) + 1).sum()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda given, _: dist.all_reduce(given), ["allreduce 0 of ranks 0-3"]),
        (lambda given, _: dist.all_reduce(given, async_op=True), ["allreduce 0 of ranks 0-3"]),
        (lambda given, _: dist.reduce(given, 0), ["reduce 0 of ranks 0-3"]),
        (lambda given, _: dist.broadcast(given, RANK), ["broadcast 0 of ranks 0-3"]),
        (
            lambda given, received: dist.all_gather_into_tensor(received.repeat(4), given),
            ["allgather 0 of ranks 0-3"],
        ),
        (lambda given, received: dist.all_gather(split(received.repeat(4)), given), ["allgather 0 of ranks 0-3"]),
        (lambda given, received: dist.reduce_scatter_tensor(received[:1], given), ["reduce_scatter 0 of ranks 0-3"]),
        (lambda given, received: dist.reduce_scatter(received[:1], split(given)), ["reduce_scatter 0 of ranks 0-3"]),
        (lambda given, received: dist.all_to_all_single(received, given), ["alltoall 0 of ranks 0-3"]),
        (lambda given, received: dist.all_to_all(split(received), split(given)), ["alltoall 0 of ranks 0-3"]),
        (lambda given, received: dist.gather(given, None, 0), ["gather 0 of ranks 0-3"]),
        (batch, ["send 0 of ranks 1, 2", "recv 0 of ranks 0, 1"]),
        (functional_sum, ["allreduce 0 of ranks 0-3"]),
    ],
)
def test_what_a_rank_gives_counts_and_what_it_receives_does_not(
    call: Callable[[torch.Tensor, torch.Tensor], Any], names: list[str]
) -> None:
    first = traced(call, 1.0, 5.0)
    assert [computed.name for computed in first.entries] == names
    assert traced(call, 1.0, 6.0).sums == first.sums
    assert traced(call, 1.5, 5.0).sums[0] != first.sums[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda _, received: dist.broadcast(received, 0),
        lambda _, received: dist.recv(received, 0),
        lambda _, received: dist.scatter(received[:1], None, 0),
    ],
)
def test_a_buffer_that_others_fill_counts_as_a_call_that_gives_nothing(
    call: Callable[[torch.Tensor, torch.Tensor], Any],
) -> None:
    assert traced(call, 1.0, 5.0).sums == traced(call, 1.0, 6.0).sums == [0]


def test_calls_are_numbered_in_each_group_of_ranks_and_barriers_are_none() -> None:
    pair = dist.new_group([1, 3])
    found = Contributions()
    with found:
        for group in (None, pair, pair):
            dist.all_reduce(torch.ones(2), group=group)
        dist.barrier()
    names = [computed.name for computed in found.trace().entries]
    assert names == ["allreduce 0 of ranks 0-3", "allreduce 0 of ranks 1, 3", "allreduce 1 of ranks 1, 3"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3)[:, 1:],
        torch.arange(4).to(torch.float8_e4m3fn),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.tensor(2.0),
    ],
    ids=["gaps", "float8", "bool", "complex", "scalar"],
)
def test_a_bit_of_any_kind_of_tensor_counts(tensor: torch.Tensor) -> None:
    def total(of: torch.Tensor) -> list[int]:
        found = Contributions()
        found.add("state", of)
        return found.trace().sums

    other = tensor.clone()
    other.view(-1).view(torch.uint8)[0] ^= 1
    assert total(tensor) == total(tensor.clone()) != total(other)


def test_a_tensor_without_elements_and_a_sparse_one_count_as_nothing() -> None:
    found = Contributions()
    found.add("empty", torch.empty(0))
    found.add("sparse", torch.eye(2).to_sparse())
    assert found.trace().sums == [0, 0]
