import pytest
import torch

from holdfast_trainer.data.zigzag import zigzag_positions


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
