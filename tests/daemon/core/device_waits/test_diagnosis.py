"""Each rule of the diagnosis, on jobs of two to eight ranks, and the twins in which nobody may be named."""

from typing import Any

import pytest

from holdfast_daemon.core.device_waits.causes import Confidence, Kind, Place
from tests.daemon.core.device_waits.jobs import judge, named, only_cause
from tests.support.recorder_documents import Document

WORLD = (0, 1, 2, 3)


def steps(count: int = 6, groups: dict[str, tuple[int, ...]] | None = None, first_record: int = 0) -> Document:
    """Return the recorder of a rank that has completed some collectives of the world."""
    document = Document(groups or {"0": WORLD}, first_record=first_record)
    for number in range(count):
        document.call(seq=first_record + number + 1)
    return document


# A rank that has not come.


def test_the_rank_that_has_not_made_the_call_is_named() -> None:
    diagnosis = judge({rank: steps() if rank == 2 else steps().pending() for rank in WORLD})
    assert named(diagnosis) == (Kind.MISSING_RANK, (2,))
    cause = only_cause(diagnosis)
    assert cause.joint is not None and (cause.joint.seq, cause.joint.op, cause.joint.waiters) == (
        7,
        "all_reduce",
        (0, 1, 3),
    )
    assert cause.confidence == Confidence.HIGH
    assert {(wait.rank, wait.awaited, wait.is_certain) for wait in diagnosis.waits} == {
        (rank, 2, True) for rank in (0, 1, 3)
    }


def test_hosts_that_run_ahead_do_not_hide_who_is_missing() -> None:
    ahead = steps().pending().pending().pending()
    assert named(judge({0: ahead, 1: steps().pending(), 2: ahead, 3: steps()})) == (Kind.MISSING_RANK, (3,))


def test_ranks_that_lag_with_a_pending_call_are_no_culprits() -> None:
    """Rank 1 has not made call 8, but waits in call 7 for rank 2 itself."""
    ahead = steps().pending().pending()
    assert named(judge({0: ahead, 1: steps().pending(), 2: steps(), 3: ahead})) == (Kind.MISSING_RANK, (2,))


def test_a_victim_at_one_remove_is_not_named() -> None:
    """Rank 1 keeps 0 waiting, because it waits in its tensor group for rank 2, which does nothing."""
    data, tensor = {"data": (0, 1)}, {"tensor": (1, 2)}
    diagnosis = judge(
        {
            0: Document(data).call(group="data").pending(group="data"),
            1: Document(data | tensor).call(group="data").call(group="tensor").pending(group="tensor"),
            2: Document(tensor).call(group="tensor"),
        }
    )
    assert named(diagnosis) == (Kind.MISSING_RANK, (2,))
    assert {(wait.rank, wait.awaited) for wait in diagnosis.waits} == {(0, 1), (1, 2)}


def test_two_missing_ranks_are_named_if_their_loop_shows_that_the_call_comes_next() -> None:
    assert named(judge({0: steps(12).pending(), 1: steps(12), 2: steps(12).pending(), 3: steps(12)})) == (
        Kind.MISSING_RANK,
        (1, 3),
    )


def test_two_idle_ranks_at_the_start_are_suspects_only() -> None:
    """Each of them may wait for the other in the set-up of a communicator, which no recorder shows."""
    diagnosis = judge({0: steps(1).pending(), 1: steps(1), 2: steps(1).pending(), 3: steps(1)})
    assert named(diagnosis) == (Kind.UNKNOWN, ())
    assert only_cause(diagnosis).suspects == (1, 3)


def test_a_stack_in_user_code_names_one_of_two_idle_ranks() -> None:
    documents = {0: steps(1).pending(), 1: steps(1), 2: steps(1).pending(), 3: steps(1)}
    assert named(judge(documents, places={3: Place.USER_CODE})) == (Kind.MISSING_RANK, (3,))


@pytest.mark.parametrize("place", [Place.CALL, Place.SET_UP, Place.LAUNCH])
def test_a_stack_in_a_call_acquits_an_idle_rank(place: Place) -> None:
    documents = {0: steps().pending(), 1: steps().pending(), 2: steps().pending(), 3: steps()}
    diagnosis = judge(documents, places={3: place})
    assert named(diagnosis) == (Kind.UNKNOWN, ())


def test_a_rank_without_a_dump_is_not_named() -> None:
    diagnosis = judge({rank: steps().pending() for rank in (0, 1, 2)}, 4)
    assert named(diagnosis) == (Kind.UNKNOWN, ())
    assert only_cause(diagnosis).suspects == (3,) and diagnosis.unread == (3,)


def test_a_rank_without_a_dump_is_named_by_its_stack() -> None:
    documents = {rank: steps().pending() for rank in (0, 1, 2)}
    assert named(judge(documents, 4, places={3: Place.DATA})) == (Kind.MISSING_RANK, (3,))


def test_an_unread_rank_lowers_the_confidence_in_another_one() -> None:
    diagnosis = judge({0: steps(12).pending(), 1: steps(12).pending(), 2: steps(12)}, 4)
    assert named(diagnosis) == (Kind.MISSING_RANK, (2,))
    assert only_cause(diagnosis).confidence == Confidence.MEDIUM


def test_an_unread_rank_excuses_an_idle_one_whose_loop_is_not_known() -> None:
    diagnosis = judge({0: steps(1).pending(), 1: steps(1).pending(), 2: steps(1)}, 4)
    assert {cause.kind for cause in diagnosis.causes} == {Kind.UNKNOWN} and diagnosis.culprits == ()
    assert {rank for cause in diagnosis.causes for rank in cause.suspects} == {2, 3}


@pytest.mark.parametrize("place", [Place.UNKNOWN, Place.CALL])
def test_an_idle_rank_of_gloo_may_wait_in_a_transfer_that_its_recorder_does_not_show(place: Place) -> None:
    def gloo() -> Document:
        return Document({"0": WORLD}, backend="gloo").call().call().call()

    documents = {rank: gloo() if rank == 0 else gloo().pending() for rank in WORLD}
    assert named(judge(documents, places={0: place})) == (Kind.UNKNOWN, ())
    assert named(judge(documents, places={0: Place.USER_CODE})) == (Kind.MISSING_RANK, (0,))


def test_an_idle_rank_of_nccl2_may_wait_in_a_batch_of_transfers() -> None:
    def stage(*, idle: bool) -> Document:
        document = Document({"0": WORLD}, backend="nccl2").call().call()
        return document.transfer("recv", 0, 3) if idle else document.pending()

    documents = {rank: stage(idle=rank == 0) for rank in WORLD}
    assert named(judge(documents)) == (Kind.UNKNOWN, ())
    assert named(judge(documents, places={0: Place.USER_CODE})) == (Kind.MISSING_RANK, (0,))


@pytest.mark.parametrize("place", [Place.UNKNOWN, Place.CALL])
def test_an_idle_rank_may_wait_in_a_call_that_its_recorder_has_ended_when_it_was_made(place: Place) -> None:
    def hooked() -> Document:
        return Document({"0": WORLD}, backend="c10d").call(state="scheduled", retired=True)

    documents = {rank: hooked() if rank == 0 else hooked().pending() for rank in WORLD}
    assert named(judge(documents, places={0: place})) == (Kind.UNKNOWN, ())
    assert named(judge(documents, places={0: Place.USER_CODE})) == (Kind.MISSING_RANK, (0,))


# Dead ranks.


def test_a_dead_rank_that_others_wait_for_is_named() -> None:
    assert named(judge({rank: steps().pending() for rank in (0, 2, 3)}, dead=[1])) == (Kind.DEAD_RANK, (1,))


def test_the_end_of_a_rank_excuses_those_that_are_elsewhere() -> None:
    documents = {0: steps().pending(), 2: steps(), 3: steps().pending()}
    assert judge(documents, dead=[1]).culprits == (1,)


def test_dead_ranks_are_named_less_surely_if_nothing_shows_that_others_wait_for_them() -> None:
    """Rank 2 is not named: it may wait for the dead rank in a way that no recorder shows."""
    pair = {"pair": (0, 2)}
    documents = {0: Document(pair).call(group="pair").pending(group="pair"), 2: Document(pair).call(group="pair")}
    diagnosis = judge(documents, 3, dead=[1])
    assert named(diagnosis) == (Kind.DEAD_RANK, (1,))
    assert only_cause(diagnosis).confidence == Confidence.MEDIUM


# Different calls under one number.


def test_two_different_calls_name_both_sides_and_blame_none() -> None:
    cause = only_cause(
        judge({0: steps(groups={"0": (0, 1)}).pending(), 1: steps(groups={"0": (0, 1)}).pending("broadcast")})
    )
    assert (cause.kind, cause.ranks, cause.suspects) == (Kind.MISMATCHED_CALL, (), (0, 1))
    assert cause.joint is not None
    assert cause.joint.sides == (
        ("all_reduce of 4 elements of type Float", (0,)),
        ("broadcast of 4 elements of type Float", (1,)),
    )


@pytest.mark.parametrize("difference", [{"op": "reduce"}, {"elements": 8}, {"dtype": "Half"}])
def test_a_single_odd_rank_among_four_is_a_hint(difference: dict[str, Any]) -> None:
    changes = {"op": "all_reduce"} | difference
    documents = {rank: steps().pending() for rank in (0, 1, 2)}
    cause = only_cause(judge(documents | {3: steps().pending(**changes)}))
    assert (cause.kind, cause.ranks, cause.confidence) == (Kind.MISMATCHED_CALL, (3,), Confidence.LOW)


@pytest.mark.parametrize("odd", [(2, 3), (1, 2, 3)])
def test_a_tie_or_several_odd_ranks_blame_nobody(odd: tuple[int, ...]) -> None:
    documents = {rank: steps().pending(elements=8 if rank in odd else 4) for rank in WORLD}
    cause = only_cause(judge(documents))
    assert (cause.kind, cause.ranks) == (Kind.MISMATCHED_CALL, (0,) if len(odd) == 3 else ())


@pytest.mark.parametrize(("sides", "named_ranks"), [((3, 2), ()), ((2, 1), ()), ((3, 1), (3,)), ((4, 2), ())])
def test_one_alone_is_a_hint_and_two_against_more_are_none(
    sides: tuple[int, int], named_ranks: tuple[int, ...]
) -> None:
    members = tuple(range(sum(sides)))
    documents = {rank: Document({"0": members}).pending(elements=4 if rank < sides[0] else 8) for rank in members}
    cause = only_cause(judge(documents))
    assert (cause.kind, cause.ranks, cause.suspects) == (Kind.MISMATCHED_CALL, named_ranks, members)


def test_a_host_inside_of_a_call_that_differs_is_not_blamed_for_it() -> None:
    inside = steps().call(retired=False).status("0", 6, -1, 6)
    documents = {rank: steps().pending("broadcast" if rank == 3 else "all_reduce") for rank in (0, 1, 3)}
    assert named(judge(documents | {2: inside})) == (Kind.MISMATCHED_CALL, (3,))


def test_a_dump_of_a_rank_that_its_own_group_does_not_name_does_no_harm() -> None:
    documents = {0: Document({"a": (1, 2)}).pending(group="a"), 1: Document({"a": (1, 2)})}
    diagnosis = judge(documents, 3)
    assert 0 not in diagnosis.culprits


def test_ranks_may_give_the_same_elements_other_shapes() -> None:
    documents = {rank: steps().pending(input_sizes=[[2, 2]] if rank == 3 else [[4]]) for rank in WORLD}
    assert named(judge(documents)) == (Kind.GPU_OR_NETWORK, ())


def test_an_all_to_all_of_uneven_parts_is_no_mismatch() -> None:
    documents = {rank: steps().pending("all_to_all", elements=rank + 1) for rank in WORLD}
    assert named(judge(documents)) == (Kind.GPU_OR_NETWORK, ())


def test_an_earlier_mismatch_that_completed_explains_the_hang() -> None:
    """Rank 1 made a broadcast too many, as call 3. So its numbers are one ahead, and it seems to miss nothing."""
    pair = {"0": (0, 1)}
    first = Document(pair).call().call().call().call().pending()
    second = Document(pair).call().call().call("broadcast").call().call()
    cause = only_cause(judge({0: first, 1: second}))
    assert (cause.kind, cause.ranks) == (Kind.MISMATCHED_CALL, ())
    assert cause.joint is not None and cause.joint.seq == 3


# Circles.


def test_two_groups_in_opposite_order_name_both_sides() -> None:
    groups = {"0": (0, 1), "a": (0, 1), "b": (0, 1)}

    def loop() -> Document:
        return Document(groups).call().call(group="a").call(group="b")

    diagnosis = judge({0: loop().pending(group="a"), 1: loop().pending(group="b")})
    assert named(diagnosis) == (Kind.OPPOSITE_ORDER, (0, 1))


def test_opposite_order_shows_even_if_both_have_made_both_calls() -> None:
    groups = {"0": (0, 1), "a": (0, 1), "b": (0, 1)}

    def loop() -> Document:
        return Document(groups).call().call(group="a").call(group="b")

    first = loop().pending(group="a").pending(group="b")
    second = loop().pending(group="b").pending(group="a")
    causes = judge({0: first, 1: second}).causes
    assert {(cause.kind, cause.ranks) for cause in causes} == {(Kind.OPPOSITE_ORDER, (0, 1))}


def test_a_ring_in_which_each_sends_first_is_a_circle() -> None:
    ring = (0, 1, 2)

    def turn(rank: int) -> Document:
        ahead, back = (rank + 1) % 3, (rank - 1) % 3
        document = Document({"0": ring}).call()
        return document.transfer("send", rank, ahead, state="scheduled").transfer("recv", rank, back, state="scheduled")

    assert named(judge({rank: turn(rank) for rank in ring})) == (Kind.OPPOSITE_ORDER, ring)


# Sends and receives.


def test_a_receive_without_a_send_waits_for_the_sender() -> None:
    pair = {"0": (0, 1)}
    first = Document(pair).call().transfer("recv", 0, 1).transfer("recv", 0, 1, state="scheduled")
    second = Document(pair).call().transfer("send", 1, 0)
    assert named(judge({0: first, 1: second})) == (Kind.MISSING_RANK, (1,))


def test_transfers_are_paired_by_their_own_count_and_not_by_numbers_of_torch() -> None:
    """Rank 1 has made other transfers in between, so its p2p_seq_id differs from that of the receiver."""
    trio = {"0": (0, 1, 2)}
    first = Document(trio).call().transfer("recv", 0, 1).transfer("recv", 0, 1, state="scheduled")
    second = Document(trio).call()
    for _ in range(4):
        second.transfer("send", 1, 2)
    second.transfer("send", 1, 0).transfer("send", 1, 0, state="scheduled")
    third = Document(trio).call()
    for _ in range(4):
        third.transfer("recv", 2, 1)
    causes = judge({0: first, 1: second, 2: third}).causes
    assert {(cause.kind, cause.ranks) for cause in causes} == {(Kind.GPU_OR_NETWORK, ())}
    without_the_last = Document(trio).call()
    for _ in range(4):
        without_the_last.transfer("send", 1, 2)
    without_the_last.transfer("send", 1, 0)
    assert named(judge({0: first, 1: without_the_last, 2: third})) == (Kind.UNKNOWN, ())


def test_full_rings_pair_transfers_by_what_is_pending() -> None:
    pair = {"0": (0, 1)}
    first = Document(pair, first_record=90).transfer("recv", 0, 1).transfer("recv", 0, 1, state="scheduled")
    second = Document(pair, first_record=40).transfer("send", 1, 0).call("broadcast", seq=5)
    diagnosis = judge({0: first, 1: second})
    assert named(diagnosis) == (Kind.MISSING_RANK, (1,))
    answered = Document(pair, first_record=40).transfer("send", 1, 0).transfer("send", 1, 0, state="scheduled")
    assert judge({0: first, 1: answered}).culprits == ()


def test_a_batch_of_transfers_waits_for_the_side_that_has_not_come() -> None:
    pair = {"0": (0, 1)}
    both = (("send", 0, 1), ("recv", 0, 1))
    first = Document(pair).call().batch(*both).batch(*both, state="scheduled")
    second = Document(pair).call().batch(("send", 1, 0), ("recv", 1, 0))
    assert named(judge({0: first, 1: second})) == (Kind.MISSING_RANK, (1,))


def test_members_of_a_complete_batch_stay_scheduled_and_nobody_waits() -> None:
    pair = {"0": (0, 1)}
    first = Document(pair).call().batch(("send", 0, 1)).coalesced(["all_reduce", "all_reduce"])
    second = Document(pair).call().batch(("recv", 1, 0)).coalesced(["all_reduce", "all_reduce"])
    assert judge({0: first, 1: second}).causes == ()


def test_the_closing_entry_of_a_batch_of_collectives_is_a_call_of_its_own() -> None:
    pair = {"0": (0, 1)}
    members = ["all_reduce", "all_reduce"]
    first, second = Document(pair).call().coalesced(members, state="scheduled"), Document(pair).call()
    assert named(judge({0: first, 1: second})) == (Kind.MISSING_RANK, (1,))


# Calls that all have made.


def test_a_call_that_all_have_made_is_a_device_or_the_network() -> None:
    diagnosis = judge({rank: steps().pending() for rank in WORLD})
    assert named(diagnosis) == (Kind.GPU_OR_NETWORK, ())
    assert diagnosis.waits == ()


def test_members_that_no_dump_names_may_be_more_than_those_with_dumps() -> None:
    documents = {rank: Document({"0": ()}).call().pending() for rank in (0, 1)}
    assert named(judge(documents, is_world_known=False)) == (Kind.UNKNOWN, ())
    assert named(judge(documents)) == (Kind.GPU_OR_NETWORK, ())


def test_a_host_that_does_not_return_from_its_call_is_named() -> None:
    """The entry is there, and the counter that moves after NCCL's function has returned is one short."""
    inside = steps().call(retired=False).status("0", 6, -1, 6)
    documents = {rank: steps().pending() for rank in (0, 1, 3)}
    assert named(judge(documents | {2: inside})) == (Kind.INSIDE_CALL, (2,))


def test_the_status_of_nccl2_is_one_short_at_all_times_and_says_nothing_of_a_host() -> None:
    """Torch's hook writes the number of the operation, which begins with 0."""

    def nccl2(ahead: int) -> Document:
        document = Document({"0": WORLD}, backend="nccl2").call().call()
        for _ in range(1 + ahead):
            document.pending()
        return document.status("0", 2 + ahead, -1, 1)

    documents = {rank: nccl2(ahead=0 if rank == 2 else 1) for rank in WORLD}
    assert named(judge(documents)) == (Kind.GPU_OR_NETWORK, ())


def test_with_blocking_wait_a_rank_with_one_call_is_not_inside_of_it() -> None:
    """Its status is empty at all times, as those of the ranks show that have made more calls."""
    groups = {"0": WORLD, "a": (0, 1)}
    first = Document(groups).call("broadcast", retired=False).status("0", -1, -1, -1)
    documents = {rank: Document(groups).call("broadcast", retired=False).pending(group="a") for rank in (0, 1)}
    documents = {rank: document.status("0", -1, -1, -1).status("a", -1, -1, -1) for rank, document in documents.items()}
    causes = judge({**documents, 2: first, 3: first}).causes
    assert all(cause.kind != Kind.INSIDE_CALL for cause in causes)


def test_nobody_is_inside_if_all_are() -> None:
    documents = {rank: steps().call(retired=False).status("0", 6, -1, 6) for rank in WORLD}
    assert named(judge(documents)) == (Kind.GPU_OR_NETWORK, ())


def test_the_device_that_does_not_come_to_a_call_is_named_by_timing() -> None:
    documents = {rank: steps().call(state="started", retired=False).status("0", 7, 7, 6) for rank in (0, 1, 3)}
    stuck = steps().pending().status("0", 7, 6, 6)
    assert named(judge(documents | {2: stuck})) == (Kind.STUCK_DEVICE, (2,))


# Recorders that show little.


def test_a_full_ring_that_begins_with_a_pending_call_may_hide_older_ones() -> None:
    """Without a status, nothing shows whether rank 1 waits for rank 0 in call 70, or in an older call for another."""
    pair = {"0": (0, 1)}
    full = Document(pair, first_record=5000).pending(seq=70).without_status()
    assert named(judge({0: Document(pair).call(seq=69), 1: full})) == (Kind.UNKNOWN, ())
    begun = Document(pair).call(seq=69).pending().without_status()
    assert named(judge({0: Document(pair).call(seq=69), 1: begun})) == (Kind.MISSING_RANK, (0,))


def test_the_status_shows_the_oldest_pending_call_that_a_full_ring_has_lost() -> None:
    """Call 8 has left the ring of rank 0, which is full of calls of another group behind it."""
    groups = {"0": (0, 1), "own": (0,)}
    lost = Document(groups, first_record=5000).pending(group="own", seq=90).status("0", 8, -1, 7)
    diagnosis = judge({0: lost, 1: Document({"0": (0, 1)}).call(seq=7)})
    assert {(wait.rank, wait.awaited, wait.joint.seq) for wait in diagnosis.waits} == {(0, 1, 8)}


def test_the_status_shows_how_far_a_rank_without_entries_is() -> None:
    documents = {rank: steps().pending() for rank in (0, 1, 2)}
    bare = steps()
    bare.entries.clear()
    waits = judge(documents | {3: bare}).waits
    assert {(wait.awaited, wait.is_certain) for wait in waits} == {(3, True)}


def test_statuses_alone_name_nobody_as_they_may_count_transfers() -> None:
    documents = {rank: steps().status("0", 6 if rank == 1 else 7, -1, 6) for rank in WORLD}
    assert judge(documents, status_alone=True).causes == ()


def test_blocking_wait_leaves_no_status_and_states_decide() -> None:
    """With TORCH_NCCL_BLOCKING_WAIT no counter moves and nothing retires."""

    def blocking(count: int) -> Document:
        document = Document({"0": WORLD})
        for _ in range(count):
            document.call(retired=False)
        return document

    documents = {rank: blocking(5).pending().status("0", -1, -1, -1) for rank in (0, 1, 2)}
    assert named(judge(documents | {3: blocking(5).status("0", -1, -1, -1)})) == (Kind.MISSING_RANK, (3,))


def test_calls_that_became_part_of_a_graph_are_not_pending() -> None:
    """They stay scheduled although later calls of their group are done."""
    captured = Document({"0": WORLD}).call().pending().call().call()
    assert judge(dict.fromkeys(WORLD, captured)).causes == ()
    documents = {rank: Document({"0": WORLD}).call().pending().call().call().pending() for rank in (0, 1, 2)}
    assert named(judge(documents | {3: captured})) == (Kind.MISSING_RANK, (3,))


# Two samples.


def test_ranks_that_move_between_two_samples_are_not_stuck() -> None:
    now = {rank: steps().pending() if rank else steps() for rank in WORLD}
    before = {rank: steps(4).pending() for rank in WORLD}
    cause = only_cause(judge(now, earlier=before))
    assert (cause.kind, cause.ranks, cause.suspects) == (Kind.MOVING, (), WORLD)


def test_a_rank_that_is_known_to_be_dead_is_the_cause_whoever_has_moved_before() -> None:
    now = {rank: steps().pending() for rank in WORLD}
    before = {rank: steps(4).pending() for rank in WORLD}
    assert named(judge(now, earlier=before, dead=[2])) == (Kind.DEAD_RANK, (2,))


def test_two_equal_samples_are_a_hang() -> None:
    now = {rank: steps().pending() if rank else steps() for rank in WORLD}
    assert named(judge(now, earlier=now)) == (Kind.MISSING_RANK, (0,))


@pytest.mark.parametrize(
    "later",
    [
        steps().pending().pending(),  # another call
        steps().call(),  # the call is done
        steps().call(retired=False),  # done, and the watchdog has not looked yet
        steps().pending().status("0", 8, -1, 6),  # the status alone has moved
        steps().pending().status("0", 7, -1, 7),
    ],
)
def test_a_rank_moves_if_it_makes_a_call_or_one_of_its_calls_advances(later: Document) -> None:
    stuck = {rank: steps().pending() if rank else steps() for rank in WORLD}
    cause = only_cause(judge(stuck | {2: later}, earlier=stuck))
    assert (cause.kind, cause.suspects) == (Kind.MOVING, (2,))


def test_a_full_ring_that_moves_is_seen_although_its_length_stays() -> None:
    before = {rank: steps(first_record=40).pending() for rank in WORLD}
    now = before | {1: steps(first_record=41).pending()}
    for document in (*before.values(), *now.values()):
        document.without_status()
    assert only_cause(judge(now, earlier=before)).suspects == (1,)


def test_waits_for_ranks_of_which_nothing_is_known_are_not_certain() -> None:
    documents = {rank: Document({"0": (0, 1, 2)}).pending() for rank in (0, 1)}
    diagnosis = judge(documents, 3)
    assert [(wait.rank, wait.awaited, wait.is_certain) for wait in diagnosis.waits] == [(0, 2, False), (1, 2, False)]


def test_a_rank_waits_for_one_that_makes_the_call_later_but_never_for_itself() -> None:
    groups = {"0": (0, 1), "a": (0, 1)}
    diagnosis = judge({0: Document(groups).pending(), 1: Document(groups).pending(group="a").pending()})
    waits = [(wait.rank, wait.awaited, wait.joint.group[0], wait.is_certain) for wait in diagnosis.waits]
    assert waits == [(0, 1, "0", False), (1, 0, "a", True)]


def test_equal_transfers_of_a_rank_are_one_wait_and_others_are_not() -> None:
    trio = {"0": (0, 1, 2)}
    document = Document(trio)
    for way, peer in (("send", 1), ("send", 1), ("send", 1), ("send", 2), ("recv", 1)):
        document.transfer(way, 0, peer, state="scheduled")
    waits = judge({0: document, 1: Document(trio), 2: Document(trio)}).waits
    found = [(wait.joint.op, wait.awaited) for wait in waits if wait.is_certain]
    # The first send is the oldest pending call, and the two other ones are behind it.
    assert found == [("send 0->1", 1), ("send 0->1", 1), ("send 0->2", 2), ("recv 0<-1", 1)]


def test_a_status_of_another_recorder_than_that_of_nccl_is_no_position() -> None:
    others = {rank: Document({"0": WORLD}, backend="nccl2").call().pending() for rank in (0, 1, 2)}
    bare = Document({"0": WORLD}, backend="nccl2").status("0", 1, -1, 1)
    assert {wait.is_certain for wait in judge(others | {3: bare}).waits} == {False}


def test_a_dead_rank_is_not_one_without_a_dump() -> None:
    assert judge({0: steps().pending()}, 3, dead=[1]).unread == (2,)


def test_nobody_waits_in_a_job_whose_calls_are_done() -> None:
    diagnosis = judge({rank: steps() for rank in WORLD})
    assert diagnosis.causes == () and diagnosis.waits == () and diagnosis.culprits == ()
