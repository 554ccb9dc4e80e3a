"""When the rows of a log show that the loss is gone, or is stuck at 0."""

from collections.abc import Sequence

import pytest

from holdfast_cli.loss_logs.log_rows import LogRow
from holdfast_cli.loss_logs.lost_loss import LossSearch, LostLoss


def found_in(losses: Sequence[float | None], search: LossSearch | None = None) -> list[tuple[str, int]]:
    search = search or LossSearch()
    seen = [search.see(LogRow(step + 1, step, loss)) for step, loss in enumerate(losses)]
    return [(one.kind, one.first.step) for one in seen if isinstance(one, LostLoss)]


def test_a_loss_that_vanishes_is_found_once_with_its_first_step() -> None:
    assert found_in([*[2.0] * 10, *[None] * 15]) == []
    assert found_in([*[2.0] * 10, *[None] * 100]) == [("missing_loss", 10)]


def test_a_log_that_writes_its_loss_rarely_has_longer_gaps() -> None:
    habit: list[float | None] = [2.0, *[None] * 9] * 4
    assert found_in([*habit, *[None] * 45]) == []
    assert found_in([*habit, *[None] * 46]) == [("missing_loss", 31)]


def test_a_log_without_a_habit_misses_nothing() -> None:
    assert found_in([2.0, 2.0, *[None] * 100]) == []


def test_rows_of_an_evaluation_miss_no_loss() -> None:
    search = LossSearch()
    found_in([2.0] * 10, search)
    rows = [LogRow(step + 1, step, None, validation_loss=2.0) for step in range(10, 100)]
    assert [search.see(row) for row in rows] == [None] * 90


def test_a_loss_that_turns_zero_is_found_once_with_its_first_step() -> None:
    assert found_in([*[0.3] * 8, *[0.0] * 4]) == []
    assert found_in([*[0.3] * 8, *[0.0] * 50]) == [("zero_loss", 8)]


def test_zeros_may_have_rows_without_a_loss_between_them() -> None:
    assert found_in([*[0.3] * 8, *[0.0, None] * 5]) == [("zero_loss", 8)]


@pytest.mark.parametrize(
    "before", [[0.3] * 7, [*[0.3] * 7, 0.0004], [*[0.3] * 7, 0.0, 0.3], [*[0.3] * 7, -0.1]], ids=str
)
def test_a_loss_that_is_often_zero_or_small_or_negative_may_be_zero(before: list[float]) -> None:
    assert found_in([*before, *[0.0] * 50]) == []


def test_what_was_lost_lasts_until_a_loss_comes_again() -> None:
    search = LossSearch()
    found_in([*[0.3] * 8, *[None] * 20], search)
    assert search.lost is not None
    found_in([0.3], search)
    assert search.lost is None


def test_a_resume_begins_anew() -> None:
    search = LossSearch()
    found_in([*[0.3] * 8, *[0.0] * 4], search)
    search.resume()
    assert found_in([0.0] * 10, search) == []
