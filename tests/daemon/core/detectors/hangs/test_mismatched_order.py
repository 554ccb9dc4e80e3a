"""Mismatched calls: calls in different orders, different calls, different sizes."""

import pytest

from holdfast_daemon.core.detectors.deaths.aborted_call import NAMES_PATIENCE_S
from holdfast_daemon.core.detectors.deaths.dead_rank import DeadRank
from holdfast_daemon.core.detectors.hangs.mismatched_order import MismatchedOrder
from holdfast_daemon.core.detectors.hangs.root_ranks import HungCollective
from holdfast_daemon.core.detectors.hangs.transport import Transport
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import NOW, Ranks

EVERYBODY = range(4)


def met() -> Ranks:
    """Return four ranks that are all in call 13 of their group."""
    ranks = Ranks()
    ranks.group("0", dict.fromkeys(EVERYBODY, 13), 12)
    return ranks


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(MismatchedOrder())


def test_the_rank_that_calls_another_operation_is_the_culprit() -> None:
    ranks = met()
    ranks.called((0, 2, 3), "0", 13, "gloo:all_reduce", "[[4]]")
    ranks.called((1,), "0", 13, "gloo:broadcast", "[[4]]")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.group, found.seq, found.op) == ([1], "0", 13, "gloo:all_reduce")
    assert list(found.calls) == [
        "ranks 0, 2, 3 in gloo:all_reduce [[4]]: call 13 of group 0",
        "rank 1 in gloo:broadcast [[4]]: call 13 of group 0",
    ]
    assert ranks.verdict(Transport()) is None


@pytest.mark.parametrize("other", [("[[5]]", "['Float']"), ("[[4]]", "['BFloat16']")], ids=["sizes", "dtypes"])
def test_sizes_and_data_types_of_a_reduction_must_agree(other: tuple[str, str]) -> None:
    ranks = met()
    ranks.called((0, 1, 3), "0", 13, "nccl:all_reduce", "[[4]]", "['Float']")
    ranks.called((2,), "0", 13, "nccl:all_reduce", *other)
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [2]


@pytest.mark.parametrize("op", ["nccl:all_to_all", "nccl:gather", "gloo:scatter"])
def test_other_sizes_are_no_mismatch_where_ranks_may_differ(op: str) -> None:
    ranks = met()
    for number in EVERYBODY:
        ranks.called((number,), "0", 13, op, f"[[{number + 1}]]")
    assert verdict(ranks) is None
    assert ranks.verdict(Transport()) is not None


def test_without_a_majority_both_sides_are_named() -> None:
    ranks = met()
    ranks.called((0, 1), "0", 13, "gloo:all_reduce")
    ranks.called((2, 3), "0", 13, "gloo:barrier")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.confidence_ratio) == ([0, 1, 2, 3], 0.8)


def test_calls_of_groups_that_share_a_name_are_not_compared() -> None:
    ranks = Ranks()
    ranks.group("tp", {0: 5, 1: 5}, 4)
    ranks.group("tp", {2: 5, 3: 5}, 4)
    ranks.called((0, 1), "tp", 5, "gloo:all_reduce")
    ranks.called((2, 3), "tp", 5, "gloo:broadcast")
    assert verdict(ranks) is None


def test_messages_have_no_number_in_the_order_of_a_group() -> None:
    ranks = met()
    ranks.called((0,), "0", 13, "nccl:send 0->1")
    ranks.called((1,), "0", 13, "nccl:recv 1<-0")
    assert verdict(ranks) is None


def test_different_calls_speak_for_themselves_even_if_another_rank_is_missing() -> None:
    ranks = Ranks()
    ranks.group("0", {0: 13, 1: 13, 2: 13, 3: 12}, 12)
    ranks.called((0, 1), "0", 13, "gloo:all_reduce")
    ranks.called((2,), "0", 13, "gloo:broadcast")
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [2]
    assert ranks.verdict(HungCollective()) is None


def test_different_calls_are_not_judged_before_a_deadline() -> None:
    ranks = met()
    ranks.called((0, 1, 2), "0", 13, "gloo:all_reduce")
    ranks.called((3,), "0", 13, "gloo:broadcast")
    for number in EVERYBODY:
        ranks[number].stalled_s = 1.0
    assert verdict(ranks) is None


def crossed() -> Ranks:
    """Return ranks of which rank 1 calls in group b before group a, and rank 0 the other way round."""
    ranks = Ranks(2)
    ranks.group("a", {0: 5, 1: 4}, 4)
    ranks.group("b", {0: 8, 1: 9}, 8, "mesh_dp")
    return ranks


def test_both_sides_of_crossed_calls_are_reported() -> None:
    found = verdict(crossed())
    assert found is not None
    assert list(found.culprits) == [0, 1]
    assert sorted(found.calls) == [
        "rank 0 waits for rank 1 in collective 5 of group a",
        "rank 1 waits for rank 0 in collective 9 of group b (mesh_dp)",
    ]


def test_crossed_calls_are_judged_once_both_ranks_have_stalled_past_their_deadlines() -> None:
    ranks = crossed()
    ranks[0].progress.phase = common.PHASE_EVAL
    assert verdict(ranks) is None


def test_two_ranks_that_wait_for_each_other_are_reported_though_a_third_may_have_sent_to_them_and_run_on() -> None:
    """Rank 3 has made the call of all ranks twice. Rank 1 has nothing pending but a message to it."""
    ranks = Ranks()
    ranks.group("0", {0: 25, 1: 25, 2: 25, 3: 26}, 25)
    ranks.group("11", {0: 51, 1: 50}, 50)
    ranks.group("12", {2: 49, 3: 48}, 48)
    ranks.channel(1, 3, sent=25, delivered=24, posted=24, received=24)
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [3, 2]
    assert ranks.verdict(HungCollective()) is None


def test_a_rank_that_computes_is_not_held_by_crossed_calls() -> None:
    ranks = crossed()
    ranks[1].thread_state = "R"
    assert verdict(ranks) is None


def test_a_rank_that_is_left_in_a_call_that_all_others_have_completed_is_the_culprit() -> None:
    ranks = Ranks()
    ranks.group("0", {0: 14, 1: 14, 2: 13, 3: 14}, 13)
    ranks[2].progress.groups[0].completed = 12
    ranks.called((2,), "0", 13, "gloo:all_reduce", "[[9]]")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.group, found.seq, found.op) == ([2], "0", 13, "gloo:all_reduce")
    assert found.message.startswith("rank 2 is still in call 13 of group 0, which all others have completed")
    assert ranks.verdict(Transport()) is None


ABORTED = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 64 vs 4."


def test_of_ranks_that_one_abort_has_ended_the_one_that_called_with_another_size_is_the_culprit() -> None:
    ranks = met()
    ranks.end(3, signal=6, last_words=ABORTED)
    for number in (0, 1, 2):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_reduce", "[[9]]" if number == 1 else "[[8]]")
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [1]
    assert ranks.verdict(DeadRank()) is None


def aborted_among_three(expected_bytes: int, *odd: str) -> Ranks:
    """Return three ranks: 0 and 1 call alike, 2 sends more. Rank 1 was aborted, and its partners have lost it."""
    ranks = Ranks(3)
    ranks.group("0", dict.fromkeys(range(3), 13), 12)
    ranks.end(1, signal=6, last_words=ABORTED.replace("64 vs 4", f"11272 vs {expected_bytes}"))
    for number in (0, 2):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
    ranks.called((0,), "0", 13, "gloo:all_reduce", "[[8449]]", "['Float']")
    ranks.called((2,), "0", 13, *odd)
    return ranks


@pytest.mark.parametrize("odd", [("[[8449]]", "['Double']"), ("[[16898]]", "['Float']")], ids=["dtype", "shape"])
def test_an_aborted_rank_belongs_to_the_side_whose_bytes_it_expected(odd: tuple[str, str]) -> None:
    found = verdict(aborted_among_three(5636, "gloo:all_reduce", *odd))
    assert found is not None
    assert list(found.culprits) == [2]
    assert found.message == (
        "ranks have met in different calls: call 13 of group 0 finds rank 0 in gloo:all_reduce [[8449]] ['Float'] and"
        f" rank 2 in gloo:all_reduce {' '.join(odd)}; rank 1 expected 5636 bytes and got 11272, so that it called like"
        " rank 0"
    )
    assert list(found.calls)[2] == "rank 1 expected 5636 bytes and got 11272"


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
    found = verdict(aborted_among_three(expected_bytes, *odd))
    assert found is not None
    assert list(found.culprits) == [0, 2]
    assert "rank 1" not in found.message


def test_an_aborted_rank_can_take_the_majority_away() -> None:
    ranks = met()
    ranks.end(1, signal=6, last_words=ABORTED.replace("64 vs 4", "64 vs 32"))
    for number in (0, 2, 3):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_reduce", "[[32]]", "['Double']" if number > 1 else "['Float']")
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [0, 1, 2, 3]


def aborted_in_tp(sender: int, *victims: int) -> Ranks:
    """Return ranks of which some were aborted in a call of group tp. The others have lost them."""
    ranks = Ranks()
    ranks.group("tp", dict.fromkeys((sender, *victims), 5), 4)
    for number in EVERYBODY:
        if number in victims:
            ranks.end(number, signal=6, last_words=ABORTED)
        else:
            ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
    ranks.called((sender,), "tp", 5, "gloo:all_reduce", "[[9]]")
    return ranks


def test_of_two_ranks_in_a_call_that_aborted_one_both_are_named() -> None:
    ranks = aborted_in_tp(2, 1)
    found = verdict(ranks)
    assert found is not None
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
    found = verdict(aborted_in_tp(3, 0, 1, 2))
    assert found is not None and list(found.culprits) == [3]


def test_of_ranks_that_two_neighbours_aborts_have_ended_the_one_that_got_what_the_other_expected_comes_first() -> None:
    ranks = met()
    ranks.end(1, signal=6, last_words=ABORTED.replace("64 vs 4", "68 vs 64"))
    ranks.end(2, signal=6, last_words=ABORTED.replace("64 vs 4", "64 vs 40"))
    for number in (0, 3):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_reduce", "[[8]]")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.seq) == ([2, 1], 13)
    assert found.message == (
        "ranks have met in gloo:all_reduce 13 of group 0 ([[8]]) with different sizes:"
        " rank 2 expected 40 bytes and got 64, rank 1 expected 64 bytes and got 68; one of them called with a wrong one"
    )


def test_a_rank_that_alone_was_aborted_while_many_called_alike_made_another_call() -> None:
    ranks = met()
    ranks.end(1, signal=6, last_words=ABORTED)
    for number in (0, 2, 3):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_reduce", "[[8]]")
    assert ranks.verdict(DeadRank()) is None
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [1]
    assert found.message == (
        "ranks 0, 2, 3 have met rank 1 in gloo:all_reduce 13 of group 0 ([[8]]) with another size:"
        " rank 1 expected 4 bytes and got 64; rank 1 made another call there, or called with a wrong size"
    )


def test_a_rank_that_waits_for_an_aborted_one_further_on_in_its_program_is_not_its_partner() -> None:
    ranks = aborted_in_tp(2, 1)
    ranks.group("dp", {0: 3, 1: 2}, 2)
    ranks.called((0,), "dp", 3, "gloo:all_gather", "[[8]]")
    ranks[0].exit.phase = common.PHASE_OPTIMIZER
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [1, 2]


def test_who_was_with_an_aborted_rank_is_asked_until_all_have_ended_or_had_the_time() -> None:
    ranks = aborted_in_tp(2, 1)
    ranks[0].ClearField("exit")
    assert verdict(ranks) is None
    assert ranks.verdict(DeadRank()) is None
    ranks.first_exit_unix_s = NOW - NAMES_PATIENCE_S
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [1, 2]


def test_an_abort_for_a_size_is_a_death_if_no_rank_reports_the_call() -> None:
    ranks = met()
    ranks.end(3, at=NOW - NAMES_PATIENCE_S - 0.01, signal=6, last_words=ABORTED)
    assert verdict(ranks) is None
    found = ranks.verdict(DeadRank())
    assert found is not None and list(found.culprits) == [3]


def in_a_line(sent_to: int) -> Ranks:
    """Return four pipeline stages. Rank 1 has sent its fifth message to ``sent_to``; then all wait for each other."""
    ranks = Ranks()
    ranks.channel(0, 1, sent=5, delivered=5, posted=5, received=5)
    ranks.channel(1, 2, sent=5 if sent_to == 2 else 4, delivered=4, posted=5, received=4)
    ranks.channel(2, 3, sent=4, delivered=4, posted=5, received=4)
    ranks.channel(2, 1, sent=4, delivered=4, posted=5, received=4)
    if sent_to != 2:
        ranks[1].progress.channels.add(
            group="pp", peer=sent_to, direction=common.DIRECTION_SEND, enqueued=1, completed=1
        )
    return ranks


def test_a_message_to_a_wrong_peer_names_who_sends_and_who_waits() -> None:
    found = verdict(in_a_line(sent_to=3))
    assert found is not None
    assert list(found.culprits) == [1, 2]
    assert found.mismatch.form == store.MISMATCH_FORM_PEER
    assert found.message == (
        "rank 1 has sent message 1 of group pp to rank 3, which posts no receive for it, and rank 2 waits for message 5"
        " from rank 1, which does not send it: one of them may name the wrong peer"
    )


def test_a_message_that_nobody_posts_a_receive_for_explains_no_hang_alone() -> None:
    ranks = in_a_line(sent_to=3)
    ranks[2].progress.channels[0].enqueued = 4  # nobody waits for rank 1
    found = verdict(ranks)
    assert found is None or found.mismatch.form != store.MISMATCH_FORM_PEER


def left_after(step: int, phase: "common.Phase") -> Ranks:
    """Return ranks in the last call of step 50. Rank 2 has made one call fewer and has left after ``step``."""
    ranks = Ranks()
    ranks.group("0", {0: 51, 1: 51, 2: 50, 3: 51}, 50)
    ranks.end(2, code=0, finished=True)
    ranks[2].exit.step = ranks[2].progress.step = step
    ranks[2].exit.phase = ranks[2].progress.phase = phase
    return ranks


@pytest.mark.parametrize(("step", "phase"), [(51, common.PHASE_DATA), (50, common.PHASE_IDLE)])
def test_a_rank_that_left_out_a_call_and_has_done_all_steps_is_a_mismatch_and_no_death(
    step: int, phase: "common.Phase"
) -> None:
    ranks = left_after(step, phase)
    assert ranks.verdict(DeadRank()) is None
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.mismatch.form) == ([2], store.MISMATCH_FORM_BEHIND)
    assert found.message == (
        f"rank 2 has left training after step {step} with 1 call fewer in group 0 than the others, and ranks 0, 1, 3"
        " wait in collective 51 of group 0: a part of a step was left out there, or made twice here"
    )


def test_a_left_out_call_is_a_mismatch_too_when_the_others_fail_in_their_last_call() -> None:
    ranks = left_after(50, common.PHASE_IDLE)
    for number in (0, 1, 3):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
    assert ranks.verdict(DeadRank()) is None
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.mismatch.form) == ([2], store.MISMATCH_FORM_BEHIND)


def test_a_rank_that_left_in_the_middle_of_the_step_has_left_early() -> None:
    ranks = left_after(50, common.PHASE_OPTIMIZER)
    assert verdict(ranks) is None
    assert ranks.verdict(DeadRank()) is not None


def test_a_rank_that_is_in_the_call_of_the_others_one_step_later_has_left_out_a_call() -> None:
    ranks = Ranks()
    ranks.group("0", dict.fromkeys(range(4), 51), 50)
    ranks[3].progress.step = 51
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.mismatch.form) == ([3], store.MISMATCH_FORM_BEHIND)
    assert found.message == (
        "rank 3 is in collective 51 of group 0 in step 51, and ranks 0, 1, 2 in step 50:"
        " a part of a step was left out by some, or made twice by others"
    )


def past_the_call(op: str) -> Ranks:
    """Return ranks in call 24, which is complete on rank 1 alone: it is one step further."""
    ranks = Ranks()
    ranks.group("0", dict.fromkeys(range(4), 24), 23)
    ranks[1].progress.groups[0].completed = 24
    ranks[1].progress.step = 51
    ranks.called((0, 2, 3), "0", 24, op)
    return ranks


def test_a_rank_that_is_past_a_call_of_the_step_before_has_left_out_a_call() -> None:
    ranks = past_the_call("gloo:all_reduce")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.mismatch.form) == ([1], store.MISMATCH_FORM_BEHIND)
    assert found.message == (
        "rank 1 is past gloo:all_reduce 24 of group 0 and in step 51, and ranks 0, 2, 3 are still in it in step 50:"
        " a part of a step was left out by some, or made twice by others"
    )


@pytest.mark.parametrize("op", ["gloo:broadcast", ""])
def test_a_rank_that_sent_in_a_broadcast_or_in_a_call_without_a_name_may_be_past_it(op: str) -> None:
    ranks = past_the_call(op)
    if not op:
        for number in EVERYBODY:
            del ranks[number].pending[:]
    assert verdict(ranks) is None


def test_a_rank_that_has_just_come_and_trains_on_has_left_out_nothing() -> None:
    ranks = past_the_call("gloo:all_reduce")
    ranks[1].stalled_s = 0.1
    assert verdict(ranks) is None


def test_a_broadcast_of_another_group_with_the_same_number_excuses_nobody() -> None:
    ranks = past_the_call("gloo:all_reduce")
    ranks.called((0,), "1", 24, "gloo:broadcast")
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [1]


def test_only_ranks_that_lack_as_many_calls_share_one_sentence() -> None:
    ranks = left_after(50, common.PHASE_IDLE)
    ranks[3].progress.groups[0].enqueued = ranks[3].progress.groups[0].completed = 48
    ranks.end(3, code=0, finished=True)
    ranks[3].exit.phase = ranks[3].progress.phase = common.PHASE_IDLE
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.mismatch.sides[1].missed_calls) == ([2], 1)


def met_by_a_message(activity: "common.Activity") -> Ranks:
    """Return pipeline stages of which the last waits in a collective, and posts no receive for what stage 1 sends."""
    ranks = Ranks(2)
    ranks.group("0", {0: 25, 1: 26}, 25)
    ranks.channel(0, 1, sent=25, delivered=24, posted=24, received=24)
    ranks.stack(0, activity, "send (train.py:84)")
    return ranks


def test_a_collective_that_meets_a_message_is_a_mismatch() -> None:
    found = verdict(met_by_a_message(common.ACTIVITY_UNSPECIFIED))
    assert found is not None
    assert list(found.culprits) == [1, 0]
    assert found.message.startswith(
        "ranks 1, 0 wait for each other: rank 1 for rank 0 in collective 26 of group 0,"
        " rank 0 for rank 1 in send 25 of group pp: their calls are in different orders, or one is missing"
    )


def test_the_message_that_nobody_receives_is_the_first_for_which_no_receive_is_posted() -> None:
    ranks = Ranks(2)
    ranks.group("0", {0: 25, 1: 26}, 25)
    ranks.channel(0, 1, sent=26, delivered=24, posted=25, received=24)
    found = verdict(ranks)
    assert found is not None and "rank 0 for rank 1 in send 26 of group pp" in found.message


def test_a_sender_that_is_seen_to_be_busy_is_at_the_root() -> None:
    ranks = met_by_a_message(common.ACTIVITY_LOCK)
    assert verdict(ranks) is None
    found = ranks.verdict(HungCollective())
    assert found is not None and list(found.culprits) == [0]
