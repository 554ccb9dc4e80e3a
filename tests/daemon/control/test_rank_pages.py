"""Which ranks match a search, in which order they come, and which of them are odd."""

import pytest

from holdfast_daemon.control.rank_pages import (
    MOST_LISTED,
    SEARCH_CHARACTERS,
    Oddity,
    RankFacts,
    RankSearch,
    check_page,
    odd_kinds,
    page_of,
)
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_OPTIMIZER


def rank(number: int, oddity: Oddity = Oddity.RUNNING, *, is_culprit: bool = False) -> RankFacts:
    """Return rank N of two on a node, at step 10 N."""
    phase = PHASE_DATA if number % 2 else PHASE_OPTIMIZER
    return RankFacts(
        oddity, number, f"gpu-{number // 2:02}", 10 * number, 0.0, 100 - number, phase, {"tp": number % 2}, is_culprit
    )


RANKS = [rank(number) for number in range(8)]
RANKS[5] = rank(5, Oddity.EXITED, is_culprit=True)
RANKS[2] = rank(2, Oddity.EXITED)
RANKS[6] = rank(6, Oddity.STALLED)
ODD = odd_kinds({Oddity.EXITED: 2, Oddity.STALLED: 1, Oddity.RUNNING: 5}, is_explained=True)


def listed(**request: object) -> tuple[list[int], int]:
    page, matching = page_of(control.GetStatusRequest(**request), RANKS, ODD)  # type: ignore[arg-type]
    return [one.number for one in page], matching


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", [3]),
        ("2-4", [2, 3, 4]),
        ("5-99999999999999", [5, 6, 7]),
        (" GPU-01 ", [2, 3]),
        ("gpu-0", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("stalled", [6]),
        ("no progress", [6]),
        ("dead", [2, 5]),
        ("culprit", [5]),
        ("data", [1, 3, 5, 7]),
        ("tp0", [0, 2, 4, 6]),
        ("gpu-9", []),
        ("", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_search_finds_ranks_by_number_range_node_state_phase_and_place(text: str, found: list[int]) -> None:
    assert [one.number for one in RANKS if RankSearch(text).fits(one)] == found


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ({"search": "x" * (SEARCH_CHARACTERS + 1)}, "the search has 101 characters: use at most 100"),
        ({"search": "135-128"}, "the search '135-128' ends before it begins: use 128-135"),
        ({"most_ranks": MOST_LISTED + 1}, "most_ranks is 4097: use at most 4096, or 0 for all ranks"),
        ({"sort": 99}, "sort is 99: use 0 to 6"),
    ],
)
def test_a_page_that_cannot_be_is_refused_in_one_line(request_: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        check_page(control.GetStatusRequest(**request_))  # type: ignore[arg-type]


def test_pages_follow_one_another_the_oddest_ranks_first() -> None:
    assert listed(most_ranks=3, sort=control.RANK_SORT_ODD_FIRST) == ([5, 2, 6], 8)
    assert listed(most_ranks=3, skip_ranks=3, sort=control.RANK_SORT_ODD_FIRST) == ([0, 1, 3], 8)
    assert listed(most_ranks=3, skip_ranks=6, sort=control.RANK_SORT_ODD_FIRST) == ([4, 7], 8)
    assert listed(most_ranks=3, skip_ranks=99, sort=control.RANK_SORT_ODD_FIRST) == ([], 8)


def test_without_a_sort_all_are_listed_by_number_if_they_fit_and_else_the_odd_ones() -> None:
    assert listed(most_ranks=8) == ([0, 1, 2, 3, 4, 5, 6, 7], 8)
    assert listed(most_ranks=7) == ([5, 2, 6], 3)
    assert listed(most_ranks=2, skip_ranks=2) == ([6], 3)


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        (control.RANK_SORT_RANK, [0, 1]),
        (control.RANK_SORT_STEP, [0, 1]),
        (control.RANK_SORT_MEMORY, [0, 1]),
        (control.RANK_SORT_NODE, [0, 1]),
    ],
)
def test_the_order_can_be_reversed(sort: int, first: list[int]) -> None:
    assert listed(most_ranks=2, sort=sort) == (first, 8)
    assert listed(most_ranks=2, sort=sort, is_reversed=True) == ([7, 6], 8)


def test_only_odd_ranks_of_a_search() -> None:
    assert listed(search="0-5", only_odd=True) == ([5, 2], 2)


@pytest.mark.parametrize(
    ("kind", "number", "is_explained", "is_odd"),
    [
        (Oddity.STARTING, 1, False, True),
        (Oddity.STARTING, 4, False, False),
        (Oddity.WAITING, 3, False, True),
        (Oddity.WAITING, 4, False, False),
        (Oddity.WAITING, 1, True, False),
        (Oddity.EXITED, 8, True, True),
        (Oddity.ENDED, 1, False, False),
    ],
)
def test_ranks_that_start_or_wait_are_odd_while_they_are_few(
    kind: Oddity, number: int, is_explained: bool, is_odd: bool
) -> None:
    counts = {kind: number, Oddity.RUNNING: 8 - number}
    assert (kind in odd_kinds(counts, is_explained=is_explained)) == is_odd
