"""What can be said if recorders show little, and what two samples of them show."""

from collections.abc import Mapping

import pytest

from holdfast_core.diagnosis.devices.causes import CauseKind, Confidence
from holdfast_core.texts.device_calls import reasons_of
from tests.core.diagnosis.devices.jobs import WORLD, judge, named, only_cause, steps
from tests.support.recorder_documents import Document

# Recorders that show little.


def test_a_full_ring_that_begins_with_a_pending_call_may_hide_older_ones() -> None:
    """Without a status, nothing shows whether rank 1 waits for rank 0 in call 70, or in an older call for another.

    Early in a program, rank 0 may then wait for that one, too, in the set-up of a communicator.
    """
    pair = {"0": (0, 1)}

    def names(seq: int, first_record: int) -> tuple[CauseKind, tuple[int, ...]]:
        waiting = Document(pair, first_record=first_record).pending(seq=seq).without_status()
        return named(judge({0: Document(pair).call(seq=seq - 1), 1: waiting}))

    assert names(4, 5000) == (CauseKind.UNKNOWN, ())
    assert names(4, 0) == (CauseKind.MISSING_RANK, (0,))
    assert names(70, 5000) == (CauseKind.MISSING_RANK, (0,))


def test_the_status_shows_the_oldest_pending_call_that_a_full_ring_has_lost() -> None:
    """Call 8 has left the ring of rank 0, which is full of calls of another group behind it."""
    groups = {"0": (0, 1), "own": (0,)}
    lost = Document(groups, first_record=5000).pending(group="own", seq=90).status("0", 8, -1, 7)
    diagnosis = judge({0: lost, 1: Document({"0": (0, 1)}).call(seq=7)})
    assert {(wait.rank, wait.awaited, wait.call.seq) for wait in diagnosis.waits} == {(0, 1, 8)}


def test_the_status_shows_how_far_a_rank_without_entries_is() -> None:
    documents = {rank: steps().pending() for rank in (0, 1, 2)}
    bare = steps()
    bare.entries.clear()
    waits = judge(documents | {3: bare}).waits
    assert {(wait.awaited, wait.is_certain) for wait in waits} == {(3, True)}


def status(numbers: Mapping[int, tuple[int, int]], group: str = "0") -> dict[int, Document]:
    """Return dumps without calls. ``numbers``: rank -> newest call that it has made and completed in a group."""
    return {rank: Document({group: WORLD}).status(group, made, -1, done) for rank, (made, done) in numbers.items()}


def test_statuses_alone_name_a_rank_that_has_not_made_what_others_wait_in_with_little_confidence() -> None:
    diagnosis = judge(status({0: (8, 6), 1: (6, 6), 2: (7, 6), 3: (7, 6)}), status_alone=True)
    cause = only_cause(diagnosis)
    assert (cause.kind, cause.ranks, cause.confidence) == (CauseKind.MISSING_RANK, (1,), Confidence.LOW)
    assert {wait.is_certain for wait in diagnosis.waits} == {False}
    assert next(reasons_of(cause, diagnosis)) == (
        "only the counters of groups were read, in which collectives and messages share one number"
    )


@pytest.mark.parametrize(
    "numbers",
    [
        {0: (8, 6), 1: (5, 5), 2: (7, 6), 3: (7, 6)},  # messages are counted: those of two ranks need not agree
        {0: (8, 6), 1: (6, 6), 2: (7, 5), 3: (7, 6)},
        {0: (8, 6), 1: (7, 6), 2: (7, 6), 3: (7, 6)},  # all have made it
        {0: (8, 6), 2: (7, 6), 3: (7, 6)},  # nothing is known of rank 1
        {0: (6, 6), 1: (6, 6), 2: (6, 6), 3: (6, 6)},
    ],
)
def test_statuses_alone_name_nobody_where_they_cannot_be_compared(numbers: Mapping[int, tuple[int, int]]) -> None:
    assert judge(status(numbers), 4, status_alone=True).culprits == ()


def test_a_rank_that_waits_in_another_group_or_is_not_behind_in_all_is_not_named_by_statuses() -> None:
    groups = {"0": WORLD, "7": (1, 2)}

    def culprits(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, ...]:
        documents = {rank: Document(groups if rank in (1, 2) else {"0": WORLD}) for rank in WORLD}
        for rank, document in documents.items():
            document.status("0", 6 if rank == 1 else 7, -1, 6)
        documents[1].status("7", one[0], -1, one[1])
        documents[2].status("7", two[0], -1, two[1])
        return judge(documents, status_alone=True).culprits

    assert culprits((3, 3), (4, 3)) == (1,)  # behind in both
    assert culprits((3, 3), (3, 3)) == (1,)
    assert culprits((4, 3), (3, 3)) == ()  # it waits for rank 2
    assert culprits((9, 9), (4, 3)) == ()


def test_blocking_wait_leaves_no_status_and_states_decide() -> None:
    """With TORCH_NCCL_BLOCKING_WAIT no counter moves and nothing retires."""

    def blocking(count: int) -> Document:
        document = Document({"0": WORLD})
        for _ in range(count):
            document.call(retired=False)
        return document

    documents = {rank: blocking(5).pending().status("0", -1, -1, -1) for rank in (0, 1, 2)}
    assert named(judge(documents | {3: blocking(5).status("0", -1, -1, -1)})) == (CauseKind.MISSING_RANK, (3,))


def test_calls_that_became_part_of_a_graph_are_not_pending() -> None:
    """They stay scheduled although later calls of their group are done."""
    captured = Document({"0": WORLD}).call().pending().call().call()
    assert judge(dict.fromkeys(WORLD, captured)).causes == ()
    documents = {rank: Document({"0": WORLD}).call().pending().call().call().pending() for rank in (0, 1, 2)}
    assert named(judge(documents | {3: captured})) == (CauseKind.MISSING_RANK, (3,))


# Two samples.


def test_ranks_that_move_between_two_samples_are_not_stuck() -> None:
    now = {rank: steps().pending() if rank else steps() for rank in WORLD}
    before = {rank: steps(4).pending() for rank in WORLD}
    cause = only_cause(judge(now, earlier=before))
    assert (cause.kind, cause.ranks, cause.suspects) == (CauseKind.MOVING, (), WORLD)


def test_a_rank_that_is_known_to_be_dead_is_the_cause_whoever_has_moved_before() -> None:
    now = {rank: steps().pending() for rank in WORLD}
    before = {rank: steps(4).pending() for rank in WORLD}
    assert named(judge(now, earlier=before, dead=[2])) == (CauseKind.DEAD_RANK, (2,))


def test_two_equal_samples_are_a_hang() -> None:
    now = {rank: steps().pending() if rank else steps() for rank in WORLD}
    assert named(judge(now, earlier=now)) == (CauseKind.MISSING_RANK, (0,))


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
    assert (cause.kind, cause.suspects) == (CauseKind.MOVING, (2,))


def test_a_full_ring_that_moves_is_seen_although_its_length_stays() -> None:
    before = {rank: steps(first_record=40).pending() for rank in WORLD}
    now = before | {1: steps(first_record=41).pending()}
    for document in (*before.values(), *now.values()):
        document.without_status()
    assert only_cause(judge(now, earlier=before)).suspects == (1,)


def test_waits_for_ranks_of_which_nothing_is_known_are_not_certain() -> None:
    diagnosis = judge({rank: Document({"0": (0, 1, 2)}).pending() for rank in (0, 1)}, 3)
    assert [(wait.rank, wait.awaited, wait.is_certain) for wait in diagnosis.waits] == [(0, 2, False), (1, 2, False)]


def test_a_rank_waits_for_one_that_makes_the_call_later_but_never_for_itself() -> None:
    groups = {"0": (0, 1), "a": (0, 1)}
    diagnosis = judge({0: Document(groups).pending(), 1: Document(groups).pending(group="a").pending()})
    waits = [(wait.rank, wait.awaited, wait.call.group[0], wait.is_certain) for wait in diagnosis.waits]
    assert waits == [(0, 1, "0", False), (1, 0, "a", True)]


def test_equal_transfers_of_a_rank_are_one_wait_and_others_are_not() -> None:
    trio = {"0": (0, 1, 2)}
    document = Document(trio)
    for way, peer in (("send", 1), ("send", 1), ("send", 1), ("send", 2), ("recv", 1)):
        document.transfer(way, 0, peer, state="scheduled")
    waits = judge({0: document, 1: Document(trio), 2: Document(trio)}).waits
    found = [(wait.call.op, wait.awaited) for wait in waits if wait.is_certain]
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


def test_a_rank_alone_may_wait_for_the_communicator_of_a_pair_while_the_program_begins() -> None:
    """Messages outside of batches have one for each pair, which is made when both need it. No recorder shows that."""
    groups = {"0": WORLD, "2": WORLD}
    documents = {rank: Document(groups).call().transfer("send", rank, (rank + 1) % 4, "2") for rank in WORLD}
    for rank in (0, 1, 2):
        documents[rank].pending()
    assert named(judge(documents)) == (CauseKind.UNKNOWN, ())
    begun = {rank: Document(groups) for rank in WORLD}
    for rank, document in begun.items():
        for _ in range(6):
            document.call().transfer("send", rank, (rank + 1) % 4, "2")
        if rank != 3:
            document.pending()
    assert named(judge(begun)) == (CauseKind.MISSING_RANK, (3,))
