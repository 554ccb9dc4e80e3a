"""The choice of what is compared. Other tests check that replicas agree until a bit flips: those with the trainer's
ranks, and test_worlds.py under DistributedDataParallel."""

from collections.abc import Callable

import pytest
import torch

from holdfast_hooks.replicas.pieces import PIECE_BYTES, Piece, Rotation, as_words, cut
from holdfast_hooks.replicas.replica_check import CheckPace

WORDS_PER_PIECE = PIECE_BYTES // 4


def pieces(count: int) -> list[Piece]:
    return [Piece(str(index), ()) for index in range(count)]


def names(chosen: list[Piece]) -> list[str]:
    return [piece.name for piece in chosen]


def test_large_tensors_are_cut_into_ranges_and_small_ones_put_together() -> None:
    tensors = {
        "up": torch.zeros(2, WORDS_PER_PIECE),
        "half": torch.zeros(PIECE_BYTES, dtype=torch.bfloat16),
        "norm": torch.zeros(8),
        "bias": torch.zeros(3, dtype=torch.bfloat16),
    }
    cut_pieces = cut(tensors, holders="2")
    half, words = PIECE_BYTES // 2, WORDS_PER_PIECE
    assert names(cut_pieces) == [
        *[f"half@2[0:{half}]", f"half@2[{half}:{2 * half}]"],
        *[f"up@2[0:{words}]", f"up@2[{words}:{2 * words}]"],
        "bias@2..norm@2",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool])
@pytest.mark.parametrize("elements", [1, 3, 8])
@pytest.mark.parametrize("bit", [0, 3, 7])
def test_one_flipped_bit_changes_the_sum(dtype: torch.dtype, elements: int, bit: int) -> None:
    tensor = torch.ones(elements + 1).to(dtype)[1:]
    (piece,) = cut({"tensor": tensor, "other": torch.ones(5)}, holders="0")
    before = piece.sum().item()
    tensor.view(torch.uint8)[-1] ^= 1 << bit
    assert piece.sum().item() != before


def test_tensors_are_read_in_place_whatever_the_order_of_their_dims() -> None:
    tensor = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    words = as_words(tensor)
    assert words is not None and words.data_ptr() == tensor.data_ptr()
    assert as_words(torch.zeros(4, 4)[:, :2]) is None


@pytest.mark.parametrize("count", [1, 2, 9, 16, 100])
@pytest.mark.parametrize("every", [1, 2, 4, 64])
def test_every_piece_has_its_turn_at_any_pace(count: int, every: int) -> None:
    rotation = Rotation(pieces(count))
    turns = [names(rotation.at(step, 1)) for step in range(0, (count + 1) * every, every)]
    assert {name for turn in turns for name in turn} == {str(index) for index in range(count)}


def test_ranks_at_different_paces_look_at_the_same_pieces_when_they_meet() -> None:
    slow, fast = Rotation(pieces(37)), Rotation(pieces(37))
    for step in range(0, 400, 4):
        assert set(names(slow.at(step, 1))) <= set(names(fast.at(step, 8)))
    assert names(fast.at(5, 40)) == [str(index) for index in range(37)]


def run(pace: CheckPace, cost_s: Callable[[int], float], *, steps: int, step_s: float) -> float:
    """Return the share of the time that the work takes in the second half of ``steps``."""
    spent_s = 0.0
    for step in range(steps):
        if pace.is_due(step):
            took_s = cost_s(pace.portions)
            pace.worked(step, began_s=step * step_s, ended_s=step * step_s + took_s)
            spent_s += took_s if step >= steps // 2 else 0.0
    return spent_s / (steps / 2 * step_s)


@pytest.mark.parametrize("portion_s", [1e-6, 2e-5, 1e-3])
def test_the_pace_settles_within_its_budget_and_uses_much_of_it(portion_s: float) -> None:
    share = run(CheckPace(0.001), lambda portions: portions * portion_s, steps=1 << 14, step_s=0.01)
    assert share <= 0.001
    assert share >= min(0.0002, 8 * portion_s / 0.01 / 2)


def test_a_slower_paces_steps_are_among_a_faster_ones() -> None:
    slow, fast = CheckPace(0.001), CheckPace(0.001)
    run(slow, lambda portions: 1e-4 * portions, steps=4096, step_s=0.01)
    run(fast, lambda portions: 1e-5 * portions, steps=4096, step_s=0.01)
    assert slow.every > fast.every
    assert all(fast.is_due(step) for step in range(4096) if slow.is_due(step))
