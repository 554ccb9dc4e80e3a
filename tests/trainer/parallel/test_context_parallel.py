from dataclasses import replace

import pytest
import torch

from holdfast_trainer.data.zigzag import zigzag_positions
from holdfast_trainer.parallel.context_parallel import in_order
from tests.trainer.conftest import CheckLayouts
from tests.trainer.layouts import ONE_RANK


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_of_all_ranks_are_put_into_the_order_of_the_sequence(ranks: int) -> None:
    whole = torch.arange(2 * 16 * 3).reshape(2, 16, 3)
    parts = [whole[:, zigzag_positions(16, ranks, rank)] for rank in range(ranks)]
    assert torch.equal(in_order(torch.stack(parts), dim=1), whole)


@pytest.mark.system
def test_a_sequence_on_two_ranks_computes_what_one_process_computes(check_layouts: CheckLayouts) -> None:
    check_layouts([replace(ONE_RANK, cp=2), replace(ONE_RANK, experts=True, cp=2)])


@pytest.mark.system
def test_a_sequence_on_four_ranks_computes_what_one_process_computes(check_layouts: CheckLayouts) -> None:
    check_layouts([replace(ONE_RANK, cp=4), replace(ONE_RANK, experts=True, cp=4), replace(ONE_RANK, cp=2, tp=2)])
