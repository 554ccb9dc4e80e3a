"""Each rule of the diagnosis, on jobs of two to eight ranks, and the twins in which nobody may be named."""

from typing import Any

import pytest

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_core.diagnosis.devices.causes import CauseKind, Confidence, Place
from holdfast_core.diagnosis.devices.diagnosis import RecorderDumps
from tests.core.diagnosis.devices.jobs import WORLD, judge, named, only_cause, steps
from tests.support.recorder_documents import Document

# A rank that has not come.


def test_the_rank_that_has_not_made_the_call_is_named() -> None:
    diagnosis = judge({rank: steps() if rank == 2 else steps().pending() for rank in WORLD})
    assert named(diagnosis) == (CauseKind.MISSING_RANK, (2,))
    cause = only_cause(diagnosis)
    assert cause.call is not None and (cause.call.seq, cause.call.op, cause.call.waiters) == (
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
    assert named(judge({0: ahead, 1: steps().pending(), 2: ahead, 3: steps()})) == (CauseKind.MISSING_RANK, (3,))


def test_ranks_that_lag_with_a_pending_call_are_no_culprits() -> None:
    """Rank 1 has not made call 8, but waits in call 7 for rank 2 itself."""
    ahead = steps().pending().pending()
    assert named(judge({0: ahead, 1: steps().pending(), 2: steps(), 3: ahead})) == (CauseKind.MISSING_RANK, (2,))


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
    assert named(diagnosis) == (CauseKind.MISSING_RANK, (2,))
    assert {(wait.rank, wait.awaited) for wait in diagnosis.waits} == {(0, 1), (1, 2)}


def test_two_idle_ranks_at_the_start_are_suspects_only() -> None:
    """Each of them may wait for the other in the set-up of a communicator, which no recorder shows."""
    diagnosis = judge({0: steps(1).pending(), 1: steps(1), 2: steps(1).pending(), 3: steps(1)})
    assert (named(diagnosis), only_cause(diagnosis).suspects) == ((CauseKind.UNKNOWN, ()), (1, 3))


@pytest.mark.parametrize("place", [Place.CALL, Place.SET_UP, Place.LAUNCH])
def test_a_stack_in_a_call_acquits_an_idle_rank(place: Place) -> None:
    documents = {0: steps().pending(), 1: steps().pending(), 2: steps().pending(), 3: steps()}
    assert named(judge(documents, places={3: place})) == (CauseKind.UNKNOWN, ())


def test_a_rank_without_a_dump_is_not_named() -> None:
    diagnosis = judge({rank: steps().pending() for rank in (0, 1, 2)}, 4)
    assert named(diagnosis) == (CauseKind.UNKNOWN, ())
    assert only_cause(diagnosis).suspects == (3,) and diagnosis.unread == (3,)


def test_an_unread_rank_lowers_the_confidence_in_another_one() -> None:
    diagnosis = judge({0: steps(12).pending(), 1: steps(12).pending(), 2: steps(12)}, 4)
    assert named(diagnosis) == (CauseKind.MISSING_RANK, (2,))
    assert only_cause(diagnosis).confidence == Confidence.MEDIUM


def test_an_unread_rank_excuses_an_idle_one_whose_loop_is_not_known() -> None:
    diagnosis = judge({0: steps(1).pending(), 1: steps(1).pending(), 2: steps(1)}, 4)
    assert {cause.kind for cause in diagnosis.causes} == {CauseKind.UNKNOWN} and diagnosis.culprits == ()
    assert {rank for cause in diagnosis.causes for rank in cause.suspects} == {2, 3}


@pytest.mark.parametrize("place", [Place.UNKNOWN, Place.CALL])
def test_an_idle_rank_of_gloo_may_wait_in_a_transfer_that_its_recorder_does_not_show(place: Place) -> None:
    def gloo() -> Document:
        return Document({"0": WORLD}, backend="gloo").call().call().call()

    documents = {rank: gloo() if rank == 0 else gloo().pending() for rank in WORLD}
    assert named(judge(documents, places={0: place})) == (CauseKind.UNKNOWN, ())
    assert named(judge(documents, places={0: Place.USER_CODE})) == (CauseKind.MISSING_RANK, (0,))


def test_an_idle_rank_of_nccl2_may_wait_in_a_batch_of_transfers() -> None:
    def stage(*, idle: bool) -> Document:
        document = Document({"0": WORLD}, backend="nccl2").call().call()
        return document.transfer("recv", 0, 3) if idle else document.pending()

    documents = {rank: stage(idle=rank == 0) for rank in WORLD}
    assert named(judge(documents)) == (CauseKind.UNKNOWN, ())
    assert named(judge(documents, places={0: Place.USER_CODE})) == (CauseKind.MISSING_RANK, (0,))


@pytest.mark.parametrize("place", [Place.UNKNOWN, Place.CALL])
def test_an_idle_rank_may_wait_in_a_call_that_its_recorder_has_ended_when_it_was_made(place: Place) -> None:
    def hooked() -> Document:
        return Document({"0": WORLD}, backend="c10d").call(state="scheduled", retired=True)

    documents = {rank: hooked() if rank == 0 else hooked().pending() for rank in WORLD}
    assert named(judge(documents, places={0: place})) == (CauseKind.UNKNOWN, ())
    assert named(judge(documents, places={0: Place.USER_CODE})) == (CauseKind.MISSING_RANK, (0,))


# Dead ranks.


def test_a_dead_rank_that_others_wait_for_is_named() -> None:
    assert named(judge({rank: steps().pending() for rank in (0, 2, 3)}, dead=[1])) == (CauseKind.DEAD_RANK, (1,))


def test_dead_ranks_are_named_less_surely_if_nothing_shows_that_others_wait_for_them() -> None:
    """Rank 2 is not named: it may wait for the dead rank in a way that no recorder shows."""
    pair = {"pair": (0, 2)}
    documents = {0: Document(pair).call(group="pair").pending(group="pair"), 2: Document(pair).call(group="pair")}
    diagnosis = judge(documents, 3, dead=[1])
    assert (named(diagnosis), only_cause(diagnosis).confidence) == ((CauseKind.DEAD_RANK, (1,)), Confidence.MEDIUM)


# Different calls under one number.


def test_two_different_calls_name_both_sides_and_blame_none() -> None:
    cause = only_cause(
        judge({0: steps(groups={"0": (0, 1)}).pending(), 1: steps(groups={"0": (0, 1)}).pending("broadcast")})
    )
    assert (cause.kind, cause.ranks, cause.suspects) == (CauseKind.MISMATCHED_CALL, (), (0, 1))
    assert cause.call is not None
    assert cause.call.sides == (
        ("all_reduce of 4 elements of type Float", (0,)),
        ("broadcast of 4 elements of type Float", (1,)),
    )


@pytest.mark.parametrize("difference", [{"op": "reduce"}, {"elements": 8}, {"dtype": "Half"}])
def test_a_single_odd_rank_among_four_is_a_hint(difference: dict[str, Any]) -> None:
    changes = {"op": "all_reduce"} | difference
    documents = {rank: steps().pending() for rank in (0, 1, 2)}
    cause = only_cause(judge(documents | {3: steps().pending(**changes)}))
    assert (cause.kind, cause.ranks, cause.confidence) == (CauseKind.MISMATCHED_CALL, (3,), Confidence.LOW)


@pytest.mark.parametrize("odd", [(2, 3), (1, 2, 3)])
def test_a_tie_or_several_odd_ranks_blame_nobody(odd: tuple[int, ...]) -> None:
    cause = only_cause(judge({rank: steps().pending(elements=8 if rank in odd else 4) for rank in WORLD}))
    assert (cause.kind, cause.ranks) == (CauseKind.MISMATCHED_CALL, (0,) if len(odd) == 3 else ())


@pytest.mark.parametrize(("sides", "named_ranks"), [((3, 2), ()), ((2, 1), ()), ((3, 1), (3,)), ((4, 2), ())])
def test_one_alone_is_a_hint_and_two_against_more_are_none(
    sides: tuple[int, int], named_ranks: tuple[int, ...]
) -> None:
    members = tuple(range(sum(sides)))
    documents = {rank: Document({"0": members}).pending(elements=4 if rank < sides[0] else 8) for rank in members}
    cause = only_cause(judge(documents))
    assert (cause.kind, cause.ranks, cause.suspects) == (CauseKind.MISMATCHED_CALL, named_ranks, members)


def test_a_host_inside_of_a_call_that_differs_is_not_blamed_for_it() -> None:
    inside = steps().call(retired=False).status("0", 6, -1, 6)
    documents = {rank: steps().pending("broadcast" if rank == 3 else "all_reduce") for rank in (0, 1, 3)}
    assert named(judge(documents | {2: inside})) == (CauseKind.MISMATCHED_CALL, (3,))


def test_a_dump_of_a_rank_that_its_own_group_does_not_name_does_no_harm() -> None:
    diagnosis = judge({0: Document({"a": (1, 2)}).pending(group="a"), 1: Document({"a": (1, 2)})}, 3)
    assert 0 not in diagnosis.culprits


def test_ranks_may_give_the_same_elements_other_shapes() -> None:
    documents = {rank: steps().pending(input_sizes=[[2, 2]] if rank == 3 else [[4]]) for rank in WORLD}
    assert named(judge(documents)) == (CauseKind.GPU_OR_NETWORK, ())


def test_an_all_to_all_of_uneven_parts_is_no_mismatch() -> None:
    documents = {rank: steps().pending("all_to_all", elements=rank + 1) for rank in WORLD}
    assert named(judge(documents)) == (CauseKind.GPU_OR_NETWORK, ())


def test_an_earlier_mismatch_that_completed_explains_the_hang() -> None:
    """Rank 1 made a broadcast too many, as call 3. So its numbers are one ahead, and it seems to miss nothing."""
    pair = {"0": (0, 1)}
    first = Document(pair).call().call().call().call().pending()
    cause = only_cause(judge({0: first, 1: Document(pair).call().call().call("broadcast").call().call()}))
    assert (cause.kind, cause.ranks) == (CauseKind.MISMATCHED_CALL, ())
    assert cause.call is not None and cause.call.seq == 3


# Calls that all have made.


def test_a_call_that_all_have_made_is_a_device_or_the_network() -> None:
    diagnosis = judge({rank: steps().pending() for rank in WORLD})
    assert (named(diagnosis), diagnosis.waits) == ((CauseKind.GPU_OR_NETWORK, ()), ())


def test_members_that_no_dump_names_may_be_more_than_those_with_dumps() -> None:
    documents = {rank: Document({"0": ()}).call().pending() for rank in (0, 1)}
    assert named(judge(documents, is_world_known=False)) == (CauseKind.UNKNOWN, ())
    assert named(judge(documents)) == (CauseKind.GPU_OR_NETWORK, ())


def test_a_host_that_does_not_return_from_its_call_is_named() -> None:
    """The entry is there, and the counter that moves after NCCL's function has returned is one short."""
    inside = steps().call(retired=False).status("0", 6, -1, 6)
    documents = {rank: steps().pending() for rank in (0, 1, 3)}
    assert named(judge(documents | {2: inside})) == (CauseKind.INSIDE_CALL, (2,))


def test_the_status_of_nccl2_is_one_short_at_all_times_and_says_nothing_of_a_host() -> None:
    """Torch's hook writes the number of the operation, which begins with 0."""

    def nccl2(ahead: int) -> Document:
        document = Document({"0": WORLD}, backend="nccl2").call().call()
        for _ in range(1 + ahead):
            document.pending()
        return document.status("0", 2 + ahead, -1, 1)

    documents = {rank: nccl2(ahead=0 if rank == 2 else 1) for rank in WORLD}
    assert named(judge(documents)) == (CauseKind.GPU_OR_NETWORK, ())


def test_with_blocking_wait_a_rank_with_one_call_is_not_inside_of_it() -> None:
    """Its status is empty at all times, as those of the ranks show that have made more calls."""
    groups = {"0": WORLD, "a": (0, 1)}
    first = Document(groups).call("broadcast", retired=False).status("0", -1, -1, -1)
    documents = {rank: Document(groups).call("broadcast", retired=False).pending(group="a") for rank in (0, 1)}
    documents = {rank: document.status("0", -1, -1, -1).status("a", -1, -1, -1) for rank, document in documents.items()}
    causes = judge({**documents, 2: first, 3: first}).causes
    assert all(cause.kind != CauseKind.INSIDE_CALL for cause in causes)


def test_nobody_is_inside_if_all_are() -> None:
    documents = {rank: steps().call(retired=False).status("0", 6, -1, 6) for rank in WORLD}
    assert named(judge(documents)) == (CauseKind.GPU_OR_NETWORK, ())


def test_the_device_that_does_not_come_to_a_call_is_named_by_timing() -> None:
    documents = {rank: steps().call(state="started", retired=False).status("0", 7, 7, 6) for rank in (0, 1, 3)}
    stuck = steps().pending().status("0", 7, 6, 6)
    assert named(judge(documents | {2: stuck})) == (CauseKind.STUCK_DEVICE, (2,))


def test_the_dumps_of_a_hang_are_read_once_and_judged_again_only_if_something_has_changed() -> None:
    first = RecorderDumps({rank: from_document(steps().pending().document()) for rank in (0, 1)}, {})
    places = dict.fromkeys(WORLD, Place.UNKNOWN)
    judged = first.diagnosis(places, (), 4)
    assert first.diagnosis(dict(places), [], 4) is judged
    assert first.diagnosis(places | {2: Place.DATA}, (), 4) is not judged
    more = RecorderDumps({**first, 2: from_document(steps().pending().document())}, first)
    assert more.diagnosis(places, (), 4).ranks[0] is judged.ranks[0]
    assert set(more.diagnosis(places, (), 4).ranks) == {0, 1, 2}
