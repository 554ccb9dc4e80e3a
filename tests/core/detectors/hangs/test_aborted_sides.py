"""Calls of different sizes in which one side was aborted."""

import pytest

from holdfast_core.detectors.deaths.aborted_call import NAMES_PATIENCE_S
from holdfast_core.detectors.deaths.dead_rank import DeadRank
from holdfast_core.detectors.hangs.mismatched_order import MismatchedOrder
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import NOW, Ranks

EVERYBODY = range(4)
ALIKE = ("gloo:all_reduce", "[[8]]")


def met() -> Ranks:
    """Return four ranks that are all in call 13 of their group."""
    return Ranks().group("0", dict.fromkeys(EVERYBODY, 13), 12)


def lost_a_peer(ranks: Ranks, *numbers: int, called: tuple[str, ...]) -> None:
    """Let ranks fail in call 13, which they have made with this operation, these sizes and these types."""
    for number in numbers:
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, *called)


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(MismatchedOrder())


ABORTED = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 64 vs 4."


def test_of_ranks_that_one_abort_has_ended_the_one_that_called_with_another_size_is_the_culprit() -> None:
    ranks = met().end(3, signal=6, last_words=ABORTED)
    for number in (0, 1, 2):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_reduce", "[[9]]" if number == 1 else "[[8]]")
    assert ranks.culprits(MismatchedOrder()) == [1]
    assert ranks.verdict(DeadRank()) is None


def test_the_step_is_the_one_in_which_the_culprit_ended_though_its_last_report_is_older() -> None:
    ranks = met().end(1, signal=6, last_words=ABORTED)
    ranks[1].exit.step, ranks[1].exit.phase = ranks[1].progress.step + 3, common.PHASE_OPTIMIZER
    lost_a_peer(ranks, 0, 2, 3, called=ALIKE)
    found = ranks.found(MismatchedOrder())
    assert (list(found.culprits), found.step, found.phase) == ([1], ranks[1].exit.step, common.PHASE_OPTIMIZER)


def aborted_among_three(expected_bytes: int, *odd: str) -> Ranks:
    """Return three ranks: 0 and 1 call alike, 2 sends more. Rank 1 was aborted, and its partners have lost it."""
    ranks = Ranks(3).group("0", dict.fromkeys(range(3), 13), 12)
    ranks.end(1, signal=6, last_words=ABORTED.replace("64 vs 4", f"11272 vs {expected_bytes}"))
    for number in (0, 2):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
    ranks.called((0,), "0", 13, "gloo:all_reduce", "[[8449]]", "['Float']").called((2,), "0", 13, *odd)
    return ranks


@pytest.mark.parametrize("odd", [("[[8449]]", "['Double']"), ("[[16898]]", "['Float']")], ids=["dtype", "shape"])
def test_an_aborted_rank_belongs_to_the_side_whose_bytes_it_expected(odd: tuple[str, str]) -> None:
    found = aborted_among_three(5636, "gloo:all_reduce", *odd).found(MismatchedOrder())
    assert list(found.culprits) == [2]
    assert found.message == (
        "ranks have met in different calls: call 13 of group 0 finds rank 0 in gloo:all_reduce [[8449]] ['Float'] and"
        f" rank 2 in gloo:all_reduce {' '.join(odd)}; rank 1 expected 5636 bytes and got 11272, so that it called like"
        " rank 0"
    )
    assert list(found.calls)[2] == "rank 1 expected 5636 bytes and got 11272"


def test_the_pieces_of_a_large_all_reduce_are_counted_as_gloo_divides_them() -> None:
    # Of 4,000,000 bytes, three ranks send 6 pieces (two for each), of 8,000,000 bytes 9: a piece has at most 1 MiB.
    ranks = aborted_among_three(0, "gloo:all_reduce", "[[2000000]]", "['Float']")
    ranks.end(1, signal=6, last_words=ABORTED.replace("64 vs 4", "888892 vs 666668"))
    ranks.called((0,), "0", 13, "gloo:all_reduce", "[[1000000]]", "['Float']")
    assert ranks.culprits(MismatchedOrder()) == [2]


@pytest.mark.parametrize(
    ("expected_bytes", "odd"),
    [
        (4, ("gloo:all_reduce", "[[8449]]", "['Double']")),  # it expected what neither side sends
        (5636, ("gloo:all_reduce", "[[8449]]", "['Quad']")),
        (5636, ("gloo:all_reduce", "[[8449]]", "")),
        (5636, ("gloo:broadcast", "[[8449]]", "['Double']")),  # pieces of other calls are divided differently
    ],
)
def test_both_sides_are_named_if_an_aborted_rank_may_belong_to_either(
    expected_bytes: int, odd: tuple[str, str, str]
) -> None:
    found = aborted_among_three(expected_bytes, *odd).found(MismatchedOrder())
    assert list(found.culprits) == [0, 2]
    assert "rank 1" not in found.message


def test_an_aborted_rank_can_take_the_majority_away() -> None:
    ranks = met().end(1, signal=6, last_words=ABORTED.replace("64 vs 4", "64 vs 32"))
    for number in (0, 2, 3):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_reduce", "[[32]]", "['Double']" if number > 1 else "['Float']")
    assert ranks.culprits(MismatchedOrder()) == [0, 1, 2, 3]


def aborted_in_tp(sender: int, *victims: int) -> Ranks:
    """Return ranks of which some were aborted in a call of group tp. The others have lost them."""
    ranks = Ranks().group("tp", dict.fromkeys((sender, *victims), 5), 4)
    for number in EVERYBODY:
        if number in victims:
            ranks.end(number, signal=6, last_words=ABORTED)
        else:
            ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
    ranks.called((sender,), "tp", 5, "gloo:all_reduce", "[[9]]")
    return ranks


def test_of_two_ranks_in_a_call_that_aborted_one_both_are_named() -> None:
    ranks = aborted_in_tp(2, 1)
    found = ranks.found(MismatchedOrder())
    assert (list(found.culprits), found.group, found.seq, found.op) == ([1, 2], "tp", 5, "gloo:all_reduce")
    assert found.message == (
        "rank 2 has sent more in gloo:all_reduce 5 of group tp ([[9]]) than expected:"
        " rank 1 expected 4 bytes and got 64; either may have called with a wrong size"
    )
    assert list(found.calls) == [
        "rank 2 in gloo:all_reduce [[9]]: call 5 of group tp",
        "rank 1 expected 4 bytes and got 64",
    ]
    assert ranks.verdict(DeadRank()) is None


def test_who_sent_more_than_all_others_expected_is_the_culprit() -> None:
    assert aborted_in_tp(3, 0, 1, 2).culprits(MismatchedOrder()) == [3]


def test_of_ranks_that_two_neighbours_aborts_have_ended_the_one_that_got_what_the_other_expected_comes_first() -> None:
    ranks = met().end(1, signal=6, last_words=ABORTED.replace("64 vs 4", "68 vs 64"))
    ranks.end(2, signal=6, last_words=ABORTED.replace("64 vs 4", "64 vs 40"))
    lost_a_peer(ranks, 0, 3, called=ALIKE)
    found = ranks.found(MismatchedOrder())
    assert (list(found.culprits), found.seq) == ([2, 1], 13)
    assert found.message == (
        "ranks have met in gloo:all_reduce 13 of group 0 ([[8]]) with different sizes:"
        " rank 2 expected 40 bytes and got 64, rank 1 expected 64 bytes and got 68; one of them called with a wrong one"
    )


def test_a_rank_that_alone_was_aborted_while_many_called_alike_made_another_call() -> None:
    ranks = met().end(1, signal=6, last_words=ABORTED)
    lost_a_peer(ranks, 0, 2, 3, called=ALIKE)
    assert ranks.verdict(DeadRank()) is None
    found = ranks.found(MismatchedOrder())
    assert list(found.culprits) == [1]
    assert found.message == (
        "ranks 0, 2, 3 have met rank 1 in gloo:all_reduce 13 of group 0 ([[8]]) with another size:"
        " rank 1 expected 4 bytes and got 64; rank 1 made another call there, or called with a wrong size"
    )


def test_a_rank_that_waits_for_an_aborted_one_further_on_in_its_program_is_not_its_partner() -> None:
    ranks = aborted_in_tp(2, 1).group("dp", {0: 3, 1: 2}, 2).called((0,), "dp", 3, "gloo:all_gather", "[[8]]")
    ranks[0].exit.phase = common.PHASE_OPTIMIZER
    assert ranks.culprits(MismatchedOrder()) == [1, 2]


@pytest.mark.parametrize(("sizes", "is_named"), [("[[]]", False), ("[[5]]", False), ("[[6]]", True), ("[[9]]", True)])
def test_a_call_that_cannot_have_brought_what_an_aborted_rank_got_is_not_named(sizes: str, is_named: bool) -> None:
    ranks = met().end(1, signal=6, last_words=ABORTED)
    lost_a_peer(ranks, 0, 2, 3, called=("gloo:all_reduce", sizes, "['Float']"))
    assert (verdict(ranks) is not None) is is_named
    dead = ranks.verdict(DeadRank())
    assert (dead is None) is is_named
    if dead is not None:
        assert list(dead.culprits) == [1]
        assert "a peer sent 64 bytes where it expected 4: either has a wrong size" in dead.message
        assert dead.confidence_ratio == 0.5


def test_of_several_aborted_ranks_one_may_have_sent_more_than_all_others_bring() -> None:
    ranks = met().end(1, signal=6, last_words=ABORTED.replace("64 vs 4", "680 vs 64"))
    ranks.end(2, signal=6, last_words=ABORTED.replace("64 vs 4", "64 vs 40"))
    lost_a_peer(ranks, 0, 3, called=("gloo:all_reduce", "[[8]]", "['Float']"))
    assert ranks.culprits(MismatchedOrder()) == [2, 1]


def test_the_inputs_of_all_others_count_together() -> None:
    ranks = met().end(1, signal=6, last_words=ABORTED)
    for number, sizes in ((0, "[[1]]"), (2, "[[90]]"), (3, "[[1]]")):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_to_all", sizes, "['Float']")
    assert ranks.culprits(MismatchedOrder()) == [1]


def test_who_was_with_an_aborted_rank_is_asked_until_all_have_ended_or_had_the_time() -> None:
    ranks = aborted_in_tp(2, 1)
    ranks[0].ClearField("exit")
    assert verdict(ranks) is None
    assert ranks.verdict(DeadRank()) is None
    ranks.first_exit_unix_s = NOW - NAMES_PATIENCE_S
    assert ranks.culprits(MismatchedOrder()) == [1, 2]


def test_an_abort_for_a_size_is_a_death_if_no_rank_reports_the_call() -> None:
    ranks = met().end(3, at=NOW - NAMES_PATIENCE_S - 0.01, signal=6, last_words=ABORTED)
    assert verdict(ranks) is None
    assert ranks.culprits(DeadRank()) == [3]
