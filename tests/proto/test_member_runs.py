"""Members of groups as runs: nothing is lost, and what cannot be members is refused before it is expanded."""

from collections.abc import Sequence

import pytest

from holdfast_proto.member_runs import flaw_of_runs, members_of, number_of_members, runs_of

WORLD = 10_000


@pytest.mark.parametrize(
    ("members", "runs"),
    [
        ([], []),
        ([7], [7, 1, 1]),
        (range(WORLD), [0, 1, WORLD]),
        (range(3, WORLD, 8), [3, 8, 1250]),
        ([0, 1, 8, 9, 16, 17], [0, 1, 2, 8, 1, 2, 16, 1, 2]),
        ([0, 3, 4, 9], [0, 3, 2, 4, 5, 2]),
        ([1, 0], [1, 1, 1, 0, 1, 1]),
    ],
)
def test_runs_stand_for_the_members_in_their_order(members: Sequence[int], runs: list[int]) -> None:
    assert runs_of(members) == runs
    assert members_of(runs) == tuple(members)
    assert number_of_members(runs) == len(members)


def test_equal_runs_give_one_tuple() -> None:
    assert members_of([0, 1, WORLD]) is members_of([0, 1, WORLD])


@pytest.mark.parametrize(
    ("runs", "flaw"),
    [
        ([], ""),
        ([0, 1, WORLD], ""),
        ([0, 5, 2, 6, 1, 1], ""),
        ([0, 1], "cut off"),
        ([0, 1, WORLD + 1], f"rank {WORLD} of a world of {WORLD}"),
        ([0, 2**31, 2**31], "of a world"),
        ([0, 0, 2], "do not ascend"),
        ([0, 1, 0], "do not ascend"),
        ([0, 1, 3, 2, 1, 1], "do not ascend"),
    ],
)
def test_what_cannot_be_members_of_a_world_is_named(runs: list[int], flaw: str) -> None:
    found = flaw_of_runs(runs, WORLD)
    assert flaw in found
    assert bool(found) == bool(flaw)
