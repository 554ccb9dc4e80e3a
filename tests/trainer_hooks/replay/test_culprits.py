import pytest

from holdfast_hooks.replay.culprits import (
    ANY_SOURCE,
    MOST_GROUPS,
    Computed,
    Culprits,
    Trace,
    culprits_of,
    decode,
    encode,
    history,
)

Run = list[tuple[int, int]]
"""What a rank computed: the group, 0 for itself, and the sum of each thing."""


def trace(run: Run) -> Trace:
    return Trace([Computed(group, str(index)) for index, (group, _) in enumerate(run)], [total for _, total in run])


def culprits(*ranks: tuple[Run, Run]) -> Culprits:
    told = []
    for one, other in ranks:
        first, second = trace(one), trace(other)
        told.append(decode(encode(int(first.first_difference(second) is not None), history(first, second))))
    return culprits_of(told)


GROUP, OTHER, LINK = 7, 8, 9
SAME: tuple[Run, Run] = ([(GROUP, 1), (0, 2)], [(GROUP, 1), (0, 2)])


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([SAME, SAME], ()),
        # A gradient that is wrong on rank 1 reaches the state of both.
        ([([(GROUP, 1), (0, 2)], [(GROUP, 1), (0, 3)]), ([(GROUP, 1), (0, 2)], [(GROUP, 5), (0, 3)])], (1,)),
        # A message passes it on: rank 0 to rank 1 by LINK, and rank 1 to rank 2 by OTHER.
        (
            [
                ([(LINK, 1), (0, 1)], [(LINK, 2), (0, 1)]),
                ([(LINK, 0), (OTHER, 4), (0, 1)], [(LINK, 0), (OTHER, 5), (0, 2)]),
                ([(OTHER, 0), (0, 6)], [(OTHER, 0), (0, 7)]),
            ],
            (0,),
        ),
        # What rank 1 gave later explains nothing of rank 0's first difference, and neither does the same call.
        ([([(GROUP, 1), (GROUP, 1)], [(GROUP, 2), (GROUP, 2)]), ([(GROUP, 1)] * 2, [(GROUP, 1), (GROUP, 3)])], (0,)),
        ([([(GROUP, 1)], [(GROUP, 2)]), ([(GROUP, 1)], [(GROUP, 2)])], (0, 1)),
        # Its own part of the state alone, after everything that it received was the same.
        ([SAME, ([(GROUP, 1), (0, 2)], [(GROUP, 1), (0, 9)])], (1,)),
        # A rank that made no further calls in the second run.
        ([SAME, ([(GROUP, 1), (GROUP, 2)], [(GROUP, 1)])], (1,)),
        ([SAME, ([(GROUP, 1)], [(GROUP, 1), (GROUP, 2)])], (1,)),
    ],
)
def test_a_rank_is_to_blame_if_nothing_that_it_received_before_was_different(
    ranks: list[tuple[Run, Run]], expected: tuple[int, ...]
) -> None:
    assert culprits(*ranks) == (expected, True)


def test_ranks_that_seem_to_have_got_their_differences_from_each_other_are_named_without_certainty() -> None:
    # Rank 0 has posted its receive from rank 1 (OTHER) before it sends something wrong to it (LINK).
    first: tuple[Run, Run] = ([(OTHER, 0), (LINK, 1)], [(OTHER, 0), (LINK, 2)])
    second: tuple[Run, Run] = ([(LINK, 0), (OTHER, 3), (GROUP, 5)], [(LINK, 0), (OTHER, 4), (GROUP, 6)])
    third: tuple[Run, Run] = ([(GROUP, 7), (0, 1)], [(GROUP, 7), (0, 2)])
    assert culprits(first, second, third) == ((0, 1), False)


def test_a_rank_that_has_received_from_any_source_is_named_only_if_no_other_is() -> None:
    received: tuple[Run, Run] = ([(ANY_SOURCE, 0), (0, 1)], [(ANY_SOURCE, 0), (0, 2)])
    assert culprits(received, ([(LINK, 1)], [(LINK, 2)])) == ((1,), True)
    assert culprits(received, SAME) == ((0,), True)


def test_a_history_of_very_many_groups_is_cut_and_still_has_its_length() -> None:
    many: Run = [(group, 1) for group in range(2, 2 * MOST_GROUPS)]
    numbers = encode(3, history(trace(many), trace([(2, 2), *many[1:]])))
    assert len(numbers) == len(encode(0, ()))
    vote, histories = decode(numbers)
    assert (vote, len(histories), histories[0].first) == (3, MOST_GROUPS, 0)


def test_the_first_difference_has_a_name_also_after_the_last_call() -> None:
    one, other = trace([(GROUP, 1)]), trace([(GROUP, 1), (GROUP, 2)])
    index = one.first_difference(other)
    assert (index, index is not None and one.name_of(index)) == (1, "the calls after the last one")
