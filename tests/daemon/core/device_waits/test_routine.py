from holdfast_daemon.core.device_waits.calls import GroupKey
from holdfast_daemon.core.device_waits.routine import known_next_groups

DATA: GroupKey = ("data", (0, 1))
TENSOR: GroupKey = ("tensor", (0, 2))
STEP = [(TENSOR, "all_gather"), (TENSOR, "reduce_scatter"), (TENSOR, "all_reduce"), (DATA, "all_reduce")]


def test_a_loop_shows_in_which_group_the_next_call_is() -> None:
    assert known_next_groups(STEP * 2) == {TENSOR}
    assert known_next_groups([*STEP, *STEP[:3]]) == {DATA}


def test_a_place_where_the_rank_never_was_shows_nothing() -> None:
    assert known_next_groups(STEP) == set()
    assert known_next_groups([*STEP, (DATA, "broadcast")]) == set()
    assert known_next_groups([]) == set()


def test_both_ways_that_a_loop_has_gone_are_known() -> None:
    """After every second step, an evaluation follows."""
    assert known_next_groups([*STEP, (DATA, "eval"), *STEP, *STEP]) == {DATA, TENSOR}
