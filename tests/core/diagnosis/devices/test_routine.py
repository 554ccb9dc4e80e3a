from holdfast_core.diagnosis.devices.rank_calls import known_next_calls
from holdfast_core.diagnosis.wait_for_graph import GroupKey

DATA: GroupKey = ("data", (0, 1))
TENSOR: GroupKey = ("tensor", (0, 2))
STEP = [(TENSOR, "all_gather"), (TENSOR, "reduce_scatter"), (TENSOR, "all_reduce"), (DATA, "all_reduce")]


def test_a_loop_shows_which_call_is_next() -> None:
    assert known_next_calls(STEP * 2) == {STEP[0]}
    assert known_next_calls([*STEP, *STEP[:3]]) == {STEP[3]}


def test_a_place_where_the_rank_never_was_shows_nothing() -> None:
    assert known_next_calls(STEP) == set()
    assert known_next_calls([*STEP, (DATA, "broadcast")]) == set()
    assert known_next_calls([]) == set()


def test_both_ways_that_a_loop_has_gone_are_known() -> None:
    """After every second step, an evaluation follows."""
    assert known_next_calls([*STEP, (DATA, "eval"), *STEP, *STEP]) == {(DATA, "eval"), STEP[0]}
