import pytest
import torch

from holdfast_trainer.parallel.context_parallel import in_order, zigzag_positions
from tests.trainer.conftest import CheckLayouts
from tests.trainer.layouts import Layout


def test_a_rank_alone_holds_the_sequence_in_order() -> None:
    assert torch.equal(zigzag_positions(7, 1, 0), torch.arange(7))


def test_rank_holds_a_chunk_and_its_mirror_image() -> None:
    assert [zigzag_positions(12, 3, index).tolist() for index in range(3)] == [
        [0, 1, 10, 11],
        [2, 3, 8, 9],
        [4, 5, 6, 7],
    ]


@pytest.mark.parametrize("cp_size", [1, 2, 4, 8])
def test_ranks_share_all_positions_and_the_same_causal_work(cp_size: int) -> None:
    held = [zigzag_positions(32, cp_size, index) for index in range(cp_size)]
    assert sorted(torch.cat(held).tolist()) == list(range(32))
    assert len({int((positions + 1).sum()) for positions in held}) == 1
    assert all(positions.dtype == torch.int64 for positions in held)


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_of_all_ranks_are_put_into_the_order_of_the_sequence(ranks: int) -> None:
    whole = torch.arange(2 * 16 * 3).reshape(2, 16, 3)
    parts = [whole[:, zigzag_positions(16, ranks, rank)] for rank in range(ranks)]
    assert torch.equal(in_order(torch.stack(parts), dim=1), whole)


@pytest.mark.system
def test_a_sequence_on_two_ranks_computes_what_one_process_computes(check_layouts: CheckLayouts) -> None:
    check_layouts([Layout(cp=2), Layout(experts=True, cp=2)])


@pytest.mark.system
def test_a_sequence_on_four_ranks_computes_what_one_process_computes(check_layouts: CheckLayouts) -> None:
    check_layouts([Layout(cp=4), Layout(experts=True, cp=4), Layout(cp=2, tp=2)])
