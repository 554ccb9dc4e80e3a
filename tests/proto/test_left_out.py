"""Windows of data that are left out: their order, and which data a step trains on."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_proto.left_out import MOST_WINDOWS, data_of, from_messages, joined, next_window, parse, shown, to_messages

WINDOWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=8)


@given(WINDOWS)
def test_the_steps_train_on_all_data_but_those_of_the_windows_in_order(windows: list[tuple[int, int]]) -> None:
    left_out = {data for first, steps in windows for data in range(first, first + steps)}
    trained = [data for data in range(200) if data not in left_out]
    in_order = joined(windows)
    assert [data_of(step, in_order) for step in range(100)] == trained[:100]
    assert all(first + steps < after for (first, steps), (after, _) in pairwise(in_order))
    assert joined([*windows, *in_order]) == in_order
    assert from_messages(to_messages(in_order)) == parse([shown(in_order)] if in_order else []) == in_order


def test_a_window_that_has_begun_is_left_from_there_on() -> None:
    windows = ((10, 5), (20, 2))
    assert [next_window(data, windows) for data in (0, 10, 13, 15, 21, 22)] == [
        (10, 5), (10, 5), (13, 2), (20, 2), (21, 1), None,
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["", "x", "5-", "7-6", "-3", "1-2-3", "9" * 16])
def test_other_words_are_refused_by_name(word: str) -> None:
    with pytest.raises(ValueError, match="names no data: write the first and the last one, such as 41-52"):
        parse([word])


def test_the_number_of_windows_is_bounded() -> None:
    with pytest.raises(ValueError, match="too many: 1024 is the most"):
        parse([",".join(str(2 * number) for number in range(MOST_WINDOWS + 1))])
