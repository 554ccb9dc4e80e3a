"""Two ranks reduce, with a fault of rank 1 in step 1. Without it, step s gives 10 s + (10 s + 1) on both."""

import pytest

from holdfast_hooks.faults import Fault
from tests.trainer_hooks.faults.conftest import Ranks, Victims

pytestmark = pytest.mark.system

STEPS = 4


def sums(ranks: Ranks, rank: int, step: int) -> list[float]:
    """Return the results of the two groups' all-reduces, as far as the rank has got."""
    return [said["sum"] for said in ranks.said(rank) if said.get("step") == step]


def seqs(ranks: Ranks, rank: int) -> list[int]:
    """Return the number of collectives that the rank has begun in each of the two groups."""
    counts: list[int] = ranks.said(rank)[-1]["seqs"]
    return counts


def play(victims: Victims, kind: str) -> tuple[Ranks, list[int]]:
    ranks = victims.play("reduces", Fault(kind, rank=1, step=1))
    codes = ranks.wait()
    for rank in (0, 1):
        assert sums(ranks, rank, 0) == [1.0, 1.0]
    return ranks, codes


def test_a_skipped_collective_leaves_the_rank_one_behind(victims: Victims) -> None:
    ranks, codes = play(victims, "skipped-collective")
    assert sums(ranks, 1, 1)[0] == 11.0  # its own value
    assert seqs(ranks, 0)[0] == seqs(ranks, 1)[0] + 1
    assert any(codes)


def test_an_extra_collective_puts_the_rank_one_ahead(victims: Victims) -> None:
    ranks, codes = play(victims, "extra-collective")
    assert sums(ranks, 0, 1)[0] == 21.0
    assert seqs(ranks, 0)[0] == seqs(ranks, 1)[0] - 1
    assert any(codes)


def test_two_collectives_in_the_wrong_order_wait_for_each_other(victims: Victims) -> None:
    ranks, codes = play(victims, "wrong-order")
    assert sums(ranks, 0, 1) == sums(ranks, 1, 1) == [21.0]
    [first_of_0, second_of_0], [first_of_1, second_of_1] = seqs(ranks, 0), seqs(ranks, 1)
    assert first_of_1 == first_of_0 + 1
    assert second_of_0 == second_of_1 + 1
    assert all(codes)


def test_a_collective_of_another_length_fails(victims: Victims) -> None:
    _, codes = play(victims, "wrong-shape")
    assert any(codes)


def test_a_lost_message_makes_the_next_one_come_in_its_place(victims: Victims) -> None:
    ranks = victims.play("messages", Fault("lost-message", rank=0, step=1))
    assert ranks.wait() == [0, 0]
    assert [said["value"] for said in ranks.said(1)][: STEPS - 1] == [0.0, 2.0, 3.0]


def test_calls_of_every_kind_of_parallelism_pass_by_also_in_the_backward_pass(victims: Victims) -> None:
    ranks = victims.play("seen_calls", Fault("kill"))
    assert ranks.wait() == [0, 0]
    seen = {said["kind"]: said["calls"] for said in ranks.said(0)}
    assert seen["fsdp"] == ["_allgather_base_", "_reduce_scatter_base_"]
    assert seen["ddp"][-1] == "allreduce_"
    assert seen["tp"] == ["allgather_into_tensor_coalesced_"]


@pytest.mark.parametrize(("layout", "holders"), [("plain", {1}), ("ddp", {0, 1}), ("fsdp", {0})])
def test_a_gradient_that_is_not_finite_comes_once_and_reaches_each_rank_that_holds_the_sum(
    victims: Victims, layout: str, holders: set[int]
) -> None:
    ranks = victims.play("numbers", Fault("nan-gradient", rank=1, step=1, seed=1), layout=layout)
    assert ranks.wait() == [0, 0]
    for rank in (0, 1):
        assert [said["finite"] for said in ranks.said(rank)] == [True, rank not in holders, True, True]


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_one_bit_of_one_rank_is_flipped(victims: Victims, layout: str) -> None:
    ranks = victims.play("numbers", Fault("bit-flip", rank=1, step=1, seed=3), layout=layout)
    assert ranks.wait() == [0, 0]
    assert [said["flipped"] for said in ranks.said(1)] == [0, 1, 1, 1]
    assert [said["flipped"] for said in ranks.said(0)] == [0, 0, 0, 0]
