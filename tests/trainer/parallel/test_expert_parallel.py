import pytest

from tests.trainer.conftest import CheckLayouts
from tests.trainer.layouts import Layout

pytestmark = pytest.mark.system


def test_experts_on_two_ranks_compute_what_one_process_computes(check_layouts: CheckLayouts) -> None:
    check_layouts([Layout(experts=True, dp=2, ep=2), Layout(experts=True, cp=2, ep=2), Layout(experts=True, tp=2)])


def test_experts_on_four_ranks_compute_what_one_process_computes(check_layouts: CheckLayouts) -> None:
    check_layouts(
        [
            Layout(experts=True, dp=4, ep=4),
            Layout(experts=True, dp=2, cp=2, ep=4),
            Layout(experts=True, dp=2, tp=2, ep=2),
            Layout(experts=True, cp=2, tp=2, ep=2, sequence_parallel=False),
        ]
    )
