"""Mismatched calls: calls in different orders, different calls, different sizes."""

import pytest

from holdfast_core.detectors.hangs.mismatched_order import MismatchedOrder
from holdfast_core.detectors.hangs.root_ranks import HungCollective
from holdfast_core.detectors.hangs.transport import Transport
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import Ranks

EVERYBODY = range(4)


def met() -> Ranks:
    """Return four ranks that are all in call 13 of their group."""
    return Ranks().group("0", dict.fromkeys(EVERYBODY, 13), 12)


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(MismatchedOrder())


def test_the_rank_that_calls_another_operation_is_the_culprit() -> None:
    ranks = met().called((0, 2, 3), "0", 13, "gloo:all_reduce", "[[4]]")
    found = ranks.called((1,), "0", 13, "gloo:broadcast", "[[4]]").found(MismatchedOrder())
    assert (list(found.culprits), found.group, found.seq, found.op) == ([1], "0", 13, "gloo:all_reduce")
    assert list(found.calls) == [
        "ranks 0, 2, 3 in gloo:all_reduce [[4]]: call 13 of group 0",
        "rank 1 in gloo:broadcast [[4]]: call 13 of group 0",
    ]
    assert ranks.verdict(Transport()) is None


@pytest.mark.parametrize("other", [("[[5]]", "['Float']"), ("[[4]]", "['BFloat16']")], ids=["sizes", "dtypes"])
def test_sizes_and_data_types_of_a_reduction_must_agree(other: tuple[str, str]) -> None:
    ranks = met().called((0, 1, 3), "0", 13, "nccl:all_reduce", "[[4]]", "['Float']")
    assert ranks.called((2,), "0", 13, "nccl:all_reduce", *other).culprits(MismatchedOrder()) == [2]


def test_the_same_elements_in_another_shape_are_no_mismatch() -> None:
    ranks = met().called((0, 1, 3), "0", 13, "gloo:all_reduce", "[[4, 2]]", "['Float']")
    assert verdict(ranks.called((2,), "0", 13, "gloo:all_reduce", "[[8]]", "['Float']")) is None
    assert ranks.verdict(Transport()) is not None


@pytest.mark.parametrize("op", ["nccl:all_to_all", "nccl:gather", "gloo:scatter"])
def test_other_sizes_are_no_mismatch_where_ranks_may_differ(op: str) -> None:
    ranks = met()
    for number in EVERYBODY:
        ranks.called((number,), "0", 13, op, f"[[{number + 1}]]")
    assert verdict(ranks) is None
    assert ranks.verdict(Transport()) is not None


def test_without_a_majority_both_sides_are_named() -> None:
    ranks = met().called((0, 1), "0", 13, "gloo:all_reduce").called((2, 3), "0", 13, "gloo:barrier")
    found = ranks.found(MismatchedOrder())
    assert (list(found.culprits), found.confidence_ratio) == ([0, 1, 2, 3], 0.8)


def test_calls_of_groups_that_share_a_name_are_not_compared() -> None:
    ranks = Ranks().group("tp", {0: 5, 1: 5}, 4).group("tp", {2: 5, 3: 5}, 4)
    ranks.called((0, 1), "tp", 5, "gloo:all_reduce").called((2, 3), "tp", 5, "gloo:broadcast")
    assert verdict(ranks) is None


def test_messages_have_no_number_in_the_order_of_a_group() -> None:
    ranks = met().called((0,), "0", 13, "nccl:send 0->1").called((1,), "0", 13, "nccl:recv 1<-0")
    assert verdict(ranks) is None


def test_different_calls_speak_for_themselves_even_if_another_rank_is_missing() -> None:
    ranks = Ranks().group("0", {0: 13, 1: 13, 2: 13, 3: 12}, 12).called((0, 1), "0", 13, "gloo:all_reduce")
    assert ranks.called((2,), "0", 13, "gloo:broadcast").culprits(MismatchedOrder()) == [2]
    assert ranks.verdict(HungCollective()) is None


def test_different_calls_are_not_judged_before_a_deadline() -> None:
    ranks = met().called((0, 1, 2), "0", 13, "gloo:all_reduce").called((3,), "0", 13, "gloo:broadcast")
    assert verdict(ranks.set(*EVERYBODY, stalled_s=1.0)) is None


def crossed() -> Ranks:
    """Return ranks of which rank 1 calls in group b before group a, and rank 0 the other way round."""
    return Ranks(2).group("a", {0: 5, 1: 4}, 4).group("b", {0: 8, 1: 9}, 8, "mesh_dp")


def test_both_sides_of_crossed_calls_are_reported() -> None:
    found = crossed().found(MismatchedOrder())
    assert list(found.culprits) == [0, 1]
    assert sorted(found.calls) == [
        "rank 0 waits for rank 1 in collective 5 of group a",
        "rank 1 waits for rank 0 in collective 9 of group b (mesh_dp)",
    ]


def test_crossed_calls_are_judged_once_both_ranks_have_stalled_past_their_deadlines() -> None:
    assert verdict(crossed().set(0, phase=common.PHASE_EVAL)) is None


@pytest.mark.parametrize(("world", "culprits"), [(2, [0, 1]), (3, [1]), (4, [1])])
def test_of_two_groups_of_the_same_ranks_the_one_that_calls_otherwise_than_most_is_the_culprit(
    world: int, culprits: list[int]
) -> None:
    ranks = Ranks(world).group("a", {rank: 4 if rank == 1 else 5 for rank in range(world)}, 4)
    found = ranks.group("b", {rank: 9 if rank == 1 else 8 for rank in range(world)}, 8).found(MismatchedOrder())
    assert (sorted(found.culprits), found.mismatch.form) == (culprits, store.MISMATCH_FORM_CIRCLE)


def test_of_groups_of_other_ranks_the_larger_one_proves_nothing() -> None:
    ranks = Ranks(3).group("a", {0: 5, 1: 4, 2: 5}, 4).group("b", {0: 8, 1: 9}, 8)
    assert sorted(ranks.found(MismatchedOrder()).culprits) == [0, 1]


def test_two_ranks_that_wait_for_each_other_are_reported_though_a_third_may_have_sent_to_them_and_run_on() -> None:
    """Rank 3 has made the call of all ranks twice. Rank 1 has nothing pending but a message to it."""
    ranks = Ranks().group("0", {0: 25, 1: 25, 2: 25, 3: 26}, 25).group("11", {0: 51, 1: 50}, 50)
    ranks.group("12", {2: 49, 3: 48}, 48).channel(1, 3, sent=25, delivered=24, posted=24, received=24)
    assert ranks.culprits(MismatchedOrder()) == [3, 2]
    assert ranks.verdict(HungCollective()) is None


def test_a_rank_that_computes_is_not_held_by_crossed_calls() -> None:
    assert verdict(crossed().set(1, thread_state="R")) is None


def test_a_rank_that_is_left_in_a_call_that_all_others_have_completed_is_the_culprit() -> None:
    ranks = Ranks().group("0", {0: 14, 1: 14, 2: 13, 3: 14}, 13)
    ranks[2].progress.groups[0].completed = 12
    found = ranks.called((2,), "0", 13, "gloo:all_reduce", "[[9]]").found(MismatchedOrder())
    assert (list(found.culprits), found.group, found.seq, found.op) == ([2], "0", 13, "gloo:all_reduce")
    assert found.message.startswith("rank 2 is still in call 13 of group 0, which all others have completed")
    assert ranks.verdict(Transport()) is None


def in_a_line(sent_to: int) -> Ranks:
    """Return four pipeline stages. Rank 1 has sent its fifth message to ``sent_to``; then all wait for each other."""
    ranks = Ranks().channel(0, 1, sent=5, delivered=5, posted=5, received=5)
    ranks.channel(1, 2, sent=5 if sent_to == 2 else 4, delivered=4, posted=5, received=4)
    ranks.channel(2, 3, sent=4, delivered=4, posted=5, received=4)
    ranks.channel(2, 1, sent=4, delivered=4, posted=5, received=4)
    if sent_to != 2:
        ranks[1].progress.channels.add(
            group="pp", peer=sent_to, direction=common.DIRECTION_SEND, enqueued=1, completed=1
        )
    return ranks


def test_a_message_to_a_wrong_peer_names_who_sends_and_who_waits() -> None:
    found = in_a_line(sent_to=3).found(MismatchedOrder())
    assert (list(found.culprits), found.mismatch.form) == ([1, 2], store.MISMATCH_FORM_PEER)
    assert found.message == (
        "rank 1 has sent message 1 of group pp to rank 3, which posts no receive for it, and rank 2 waits for message 5"
        " from rank 1, which does not send it: one of them may name the wrong peer"
    )


def test_a_message_that_nobody_posts_a_receive_for_explains_no_hang_alone() -> None:
    ranks = in_a_line(sent_to=3)
    ranks[2].progress.channels[0].enqueued = 4  # nobody waits for rank 1
    found = verdict(ranks)
    assert found is None or found.mismatch.form != store.MISMATCH_FORM_PEER


def met_by_a_message(activity: "common.Activity") -> Ranks:
    """Return pipeline stages of which the last waits in a collective, and posts no receive for what stage 1 sends."""
    ranks = Ranks(2).group("0", {0: 25, 1: 26}, 25).channel(0, 1, sent=25, delivered=24, posted=24, received=24)
    ranks.stack(0, activity, "send (train.py:84)")
    return ranks


def test_a_collective_that_meets_a_message_is_a_mismatch() -> None:
    found = met_by_a_message(common.ACTIVITY_UNSPECIFIED).found(MismatchedOrder())
    assert list(found.culprits) == [1, 0]
    assert found.message.startswith(
        "ranks 1, 0 wait for each other: rank 1 for rank 0 in collective 26 of group 0,"
        " rank 0 for rank 1 in send 25 of group pp: their calls are in different orders, or one is missing"
    )


def test_the_message_that_nobody_receives_is_the_first_for_which_no_receive_is_posted() -> None:
    ranks = Ranks(2).group("0", {0: 25, 1: 26}, 25).channel(0, 1, sent=26, delivered=24, posted=25, received=24)
    assert "rank 0 for rank 1 in send 26 of group pp" in ranks.found(MismatchedOrder()).message


def test_a_sender_that_is_seen_to_be_busy_is_at_the_root() -> None:
    ranks = met_by_a_message(common.ACTIVITY_LOCK)
    assert verdict(ranks) is None
    assert ranks.culprits(HungCollective()) == [0]


def different_groups(made: dict[int, list[int]], name: str = "1") -> Ranks:
    """Return ranks in the first call of a group. ``made``: rank -> the members of the group that it has made."""
    ranks = Ranks()
    for number, members in made.items():
        ranks[number].progress.groups.add(group=name, member_runs=runs_of(members), enqueued=1)
    return ranks


def test_different_groups_under_one_number_are_told_with_the_members_that_each_side_sees() -> None:
    found = different_groups({0: [0, 3], 1: [1, 2], 2: [1, 2], 3: [0, 3]}).found(MismatchedOrder())
    assert (list(found.culprits), found.mismatch.form) == ([0, 1, 2, 3], store.MISMATCH_FORM_GROUPS)
    assert found.message == (
        "ranks have made different groups under number 1: ranks 0, 3 one of ranks 0, 3, ranks 1, 2 one of ranks 1, 2;"
        " every rank has to make every group, in one order"
    )


def test_nobody_is_named_by_numbers_that_mean_different_groups_unless_it_is_stopped() -> None:
    ranks = different_groups({0: [0, 3], 1: [1, 2], 2: [1, 2], 3: [0, 3]})
    ranks.group("0", {0: 37, 1: 38, 2: 38, 3: 37}, 36)
    ranks[0].stalled_s = 0.1  # its next report may show that all stand still
    assert ranks.verdict(MismatchedOrder()) is None
    assert ranks.verdict(HungCollective()) is None
    assert ranks.set(3, process_state="T").culprits(HungCollective()) == [3]


def test_a_rank_that_alone_has_made_another_group_is_the_culprit() -> None:
    assert different_groups({0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [1, 2], 3: [0, 1, 2, 3]}).culprits(
        MismatchedOrder()
    ) == [2]


def test_groups_that_torch_names_by_their_members_are_different_for_good_reason() -> None:
    made = {0: [0, 3], 1: [1, 2], 2: [1, 2], 3: [0, 3]}
    found = different_groups(made, "a3f9").verdict(MismatchedOrder())
    assert found is None or found.mismatch.form != store.MISMATCH_FORM_GROUPS


@pytest.mark.safety
def test_different_groups_are_no_fault_while_a_rank_moves() -> None:
    ranks = different_groups({0: [0, 3], 1: [1, 2], 2: [1, 2], 3: [0, 3]}).set(1, stalled_s=0.1)
    found = ranks.verdict(MismatchedOrder())
    assert found is None or found.mismatch.form != store.MISMATCH_FORM_GROUPS
