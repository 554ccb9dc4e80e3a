"""Ranks that wait for each other: circles, and sends without receives."""

import pytest

from holdfast_core.diagnosis.devices.causes import CauseKind
from holdfast_core.texts.device_calls import reasons_of
from tests.core.diagnosis.devices.jobs import judge, named, only_cause
from tests.support.recorder_documents import Document

# Sends and receives.


def test_a_receive_without_a_send_waits_for_the_sender() -> None:
    pair = {"0": (0, 1)}
    first = Document(pair).call().transfer("recv", 0, 1).transfer("recv", 0, 1, state="scheduled")
    second = Document(pair).call().transfer("send", 1, 0)
    assert named(judge({0: first, 1: second})) == (CauseKind.MISSING_RANK, (1,))


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
    assert {(cause.kind, cause.ranks) for cause in causes} == {(CauseKind.GPU_OR_NETWORK, ())}
    without_the_last = Document(trio).call()
    for _ in range(4):
        without_the_last.transfer("send", 1, 2)
    without_the_last.transfer("send", 1, 0)
    assert named(judge({0: first, 1: without_the_last, 2: third})) == (CauseKind.UNKNOWN, ())


def test_full_rings_pair_transfers_by_what_is_pending() -> None:
    pair = {"0": (0, 1)}
    first = Document(pair, first_record=90).transfer("recv", 0, 1).transfer("recv", 0, 1, state="scheduled")
    second = Document(pair, first_record=40).transfer("send", 1, 0).call("broadcast", seq=5)
    assert named(judge({0: first, 1: second})) == (CauseKind.MISSING_RANK, (1,))
    answered = Document(pair, first_record=40).transfer("send", 1, 0).transfer("send", 1, 0, state="scheduled")
    assert judge({0: first, 1: answered}).culprits == ()


def test_a_batch_of_transfers_waits_for_the_side_that_has_not_come() -> None:
    pair = {"0": (0, 1)}
    both = (("send", 0, 1), ("recv", 0, 1))
    first = Document(pair).call().batch(*both).batch(*both, state="scheduled")
    second = Document(pair).call().batch(("send", 1, 0), ("recv", 1, 0))
    assert named(judge({0: first, 1: second})) == (CauseKind.MISSING_RANK, (1,))


def test_members_of_a_complete_batch_stay_scheduled_and_nobody_waits() -> None:
    pair = {"0": (0, 1)}
    first = Document(pair).call().batch(("send", 0, 1)).coalesced(["all_reduce", "all_reduce"])
    second = Document(pair).call().batch(("recv", 1, 0)).coalesced(["all_reduce", "all_reduce"])
    assert judge({0: first, 1: second}).causes == ()


def test_the_closing_entry_of_a_batch_of_collectives_is_a_call_of_its_own() -> None:
    pair = {"0": (0, 1)}
    members = ["all_reduce", "all_reduce"]
    first, second = Document(pair).call().coalesced(members, state="scheduled"), Document(pair).call()
    assert named(judge({0: first, 1: second})) == (CauseKind.MISSING_RANK, (1,))


# Circles.


def test_two_groups_in_opposite_order_name_both_sides() -> None:
    groups = {"0": (0, 1), "a": (0, 1), "b": (0, 1)}

    def loop() -> Document:
        return Document(groups).call().call(group="a").call(group="b")

    diagnosis = judge({0: loop().pending(group="a"), 1: loop().pending(group="b")})
    assert named(diagnosis) == (CauseKind.OPPOSITE_ORDER, (0, 1))


@pytest.mark.parametrize(
    ("sent", "received", "kind"), [(8, 4, CauseKind.MISMATCHED_CALL), (8, 8, CauseKind.GPU_OR_NETWORK)]
)
def test_a_message_whose_sides_have_other_sizes_is_a_mismatch_of_these_two(
    sent: int, received: int, kind: CauseKind
) -> None:
    sides = {rank: Document({"0": (0, 1)}) for rank in (0, 1)}
    for rank, way, elements in ((0, "send", sent), (1, "recv", received)):
        sides[rank].transfer(way, rank, 1 - rank, state="started")
        sides[rank].entries[-1] |= {"input_sizes": [[elements]], "input_dtypes": ["Float"]}
    diagnosis = judge(sides)
    assert named(diagnosis) == (kind, ())
    if kind == CauseKind.MISMATCHED_CALL:
        assert only_cause(diagnosis).suspects == (0, 1)
        assert list(reasons_of(only_cause(diagnosis), diagnosis)) == [
            "rank 0 made a send of 32 bytes",
            "rank 1 made a recv of 16 bytes",
        ]
