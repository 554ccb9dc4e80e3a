"""What one rank's recorder shows: its pending calls, its position in each group, and what the ring may have lost."""

from typing import Any

import pytest

from holdfast_core.diagnosis.devices.rank_calls import Way
from tests.core.diagnosis.devices.jobs import read_calls
from tests.support.recorder_documents import Document

PAIR = {"0": (0, 1)}
TWO = {"0": (0, 1), "a": (0, 1)}
KEY = ("0", (0, 1))


def test_pending_calls_are_in_the_order_of_the_host() -> None:
    calls = read_calls(Document({"0": (0, 1), "a": (0, 1)}).call().pending(group="a").pending().pending(group="a"))
    assert [(call.group[0], call.seq) for call in calls.pending] == [("a", 1), ("0", 2), ("a", 2)]
    assert calls.front is calls.pending[0] and not calls.is_idle
    assert calls.arrived == {KEY: 2, ("a", (0, 1)): 2}
    later = calls.first_pending_of(KEY)
    assert later is not None and later.seq == 2


def test_a_rank_whose_calls_are_done_is_idle() -> None:
    assert read_calls(Document(PAIR).call().call()).is_idle


def test_peers_of_transfers_are_global_ranks() -> None:
    """The names of entries have ranks in the group: its member 1 is rank 4 of the job."""
    calls = read_calls(Document({"a": (0, 4)}).transfer("send", 0, 1, "a", state="scheduled"), world_size=8)
    assert calls.front is not None
    assert [(part.way, part.peer, part.number) for part in calls.front.transfers] == [(Way.SEND, 4, 1)]


def test_transfers_are_counted_for_each_direction_and_peer() -> None:
    document = Document({"0": (0, 1, 2)}).transfer("send", 0, 1).transfer("recv", 0, 1).transfer("send", 0, 2)
    calls = read_calls(document.batch(("send", 0, 1), ("recv", 0, 2)), world_size=3)
    world = ("0", (0, 1, 2))
    assert calls.transfers == {
        (world, Way.SEND, 1): 2,
        (world, Way.RECV, 1): 1,
        (world, Way.SEND, 2): 1,
        (world, Way.RECV, 2): 1,
    }
    assert calls.counts_exact


def test_a_full_ring_does_not_count_all_transfers() -> None:
    assert not read_calls(Document(PAIR, first_record=9).transfer("send", 0, 1)).counts_exact


def test_a_batch_is_one_call_with_all_its_transfers() -> None:
    calls = read_calls(Document(PAIR).call().batch(("send", 0, 1), ("recv", 0, 1), state="scheduled"))
    assert [(call.op, call.seq, len(call.transfers)) for call in calls.pending] == [("batch of transfers", 0, 2)]


def test_a_complete_batch_leaves_nothing_pending() -> None:
    assert read_calls(Document(PAIR).call().batch(("send", 0, 1), ("recv", 0, 1)).call()).pending == []
    assert read_calls(Document(PAIR).coalesced(["all_reduce", "broadcast"])).pending == []


def test_the_members_of_a_batch_of_collectives_are_what_ranks_must_agree_in() -> None:
    calls = read_calls(Document(PAIR).coalesced(["all_reduce", "all_reduce"], state="scheduled"))
    assert [call.signature for call in calls.pending] == ["2 x all_reduce of 4 elements of type Float"]


def test_a_closing_entry_without_its_members_says_nothing_about_them() -> None:
    """The ring begins in the middle of the batch."""
    document = Document(PAIR, first_record=50).coalesced(["all_reduce", "all_reduce"], state="scheduled")
    assert [call.signature for call in read_calls(document).pending] == [""]


def test_the_state_of_the_newest_entry_is_not_believed_while_its_host_call_lasts() -> None:
    inside = Document(PAIR).call().call(retired=False).status("0", 1, -1, 1)
    assert [(call.seq, call.inside, call.done) for call in read_calls(inside).pending] == [(2, True, False)]
    assert read_calls(Document(PAIR).call().call(retired=False).status("0", 2, -1, 1)).pending == []


def test_the_first_call_of_all_may_be_inside_too() -> None:
    assert [call.inside for call in read_calls(Document(PAIR).pending().status("0", -1, -1, -1)).pending] == [True]
    assert [call.inside for call in read_calls(Document(PAIR).pending()).pending] == [False]


@pytest.mark.parametrize(
    ("document", "is_inside"),
    [
        (Document(TWO).call(group="a").pending().status("0", -1, -1, -1), True),
        # With TORCH_NCCL_BLOCKING_WAIT no number is ever written.
        (Document(TWO).call(group="a").status("a", -1, -1, -1).pending().status("0", -1, -1, -1), False),
        (Document(PAIR, first_record=9).pending().status("0", -1, -1, -1), False),  # it is not the first one
        (Document(PAIR).call(state="started", retired=False).status("0", -1, -1, -1), False),  # the device has come
    ],
)
def test_a_first_call_is_inside_only_if_nothing_else_explains_the_missing_number(
    document: Document, is_inside: bool
) -> None:
    assert [call.inside for call in read_calls(document).pending] == [is_inside]


def test_only_the_newest_call_of_a_group_can_be_inside() -> None:
    document = Document(PAIR).call().pending().pending()
    assert [call.inside for call in read_calls(document.status("0", 2, -1, 1)).pending] == [False, True]
    assert [call.inside for call in read_calls(document.status("0", 1, -1, 1)).pending] == [False, False]


def test_calls_before_the_newest_two_have_returned() -> None:
    document = Document(PAIR).pending().pending().pending().status("0", 2, -1, 0)
    assert [call.inside for call in read_calls(document).pending] == [False, False, True]


@pytest.mark.parametrize(
    "op",
    [
        *("all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "_allgather_base"),
        *("reduce_scatter", "_reduce_scatter_base", "all_reduce_barrier"),
    ],
)
def test_ranks_must_agree_in_the_sizes_of_these_operations(op: str) -> None:
    (call,) = read_calls(Document(PAIR).pending(op, elements=6)).pending
    assert call.signature == f"{op} of 6 elements of type Float"


@pytest.mark.parametrize("op", ["all_to_all", "gather", "scatter", "barrier"])
def test_ranks_may_differ_in_the_sizes_of_other_operations(op: str) -> None:
    assert [call.signature for call in read_calls(Document(PAIR).pending(op)).pending] == [op]


def test_a_signature_has_what_is_known() -> None:
    shapes: dict[str, Any] = {"input_sizes": [[2, 3], [4]], "input_dtypes": ["Half", "Float"]}
    (call,) = read_calls(Document(PAIR).pending(**shapes)).pending
    assert call.signature == "all_reduce of 10 elements of type Float Half"
    (call,) = read_calls(Document(PAIR).pending(input_sizes=[[2]], input_dtypes=[])).pending
    assert call.signature == "all_reduce of 2 elements"
    (call,) = read_calls(Document(PAIR).pending(input_sizes="")).pending
    assert call.signature == "all_reduce"


@pytest.mark.parametrize("op", ["allreduce_coalesced", "reduce_scatter_tensor_coalesced"])
def test_the_fast_way_of_a_coalesced_call_is_one_entry_and_no_batch(op: str) -> None:
    document = Document(PAIR, first_record=70).call(seq=9).pending().pending(op, input_sizes=[[4], [4]])
    assert [call.op for call in read_calls(document).pending] == ["all_reduce", op]
    assert read_calls(document).pending[1].signature == f"{op} of 8 elements of type Float"


def test_whether_a_device_has_reached_a_call_is_not_known_while_the_host_makes_it() -> None:
    calls = read_calls(Document(PAIR).call().call(retired=False).status("0", 1, 1, 1))
    assert [(call.inside, call.started) for call in calls.pending] == [(True, None)]


def test_a_call_has_the_name_and_the_place_of_what_it_consists_of() -> None:
    document = Document(PAIR).transfer("send", 0, 1, state="scheduled").pending("broadcast")
    batch = Document(PAIR).batch(("send", 0, 1), ("recv", 0, 1), state="scheduled")
    batch.entries[1]["frames"] = [{"filename": "/me/train.py", "line": 7, "name": "step"}]
    assert [call.op for call in read_calls(document).pending] == ["send 0->1", "broadcast"]
    (call,) = read_calls(batch).pending
    assert (call.op, call.frame) == ("batch of transfers", "/me/train.py:7 step")
    batch.entries[2]["frames"] = [{"filename": "/me/train.py", "line": 9, "name": "step"}]
    assert read_calls(batch).pending[0].frame == "/me/train.py:9 step"


@pytest.mark.parametrize("op", ["nccl:send", "nccl:send 0->2", "nccl:send 0->99"])
def test_a_transfer_whose_peer_is_not_known_is_pending_and_counts_for_nobody(op: str) -> None:
    document = Document(PAIR).transfer("send", 0, 1, state="scheduled")
    document.entries[0]["profiling_name"] = op
    calls = read_calls(document)
    assert ([(call.is_p2p, call.transfers) for call in calls.pending], calls.transfers) == ([(True, ())], {})


def test_started_is_known_with_timing_only() -> None:
    plain = read_calls(Document(PAIR).call().pending())
    timed = read_calls(Document(PAIR).call().pending().status("0", 2, 1, 1))
    assert [call.started for call in (*plain.pending, *timed.pending)] == [None, False]
    reached = read_calls(Document(PAIR).call().call(state="started", retired=False).status("0", 2, 2, 1))
    assert [call.started for call in reached.pending] == [True]


def test_a_status_with_transfers_in_it_is_no_position() -> None:
    mixed = Document(PAIR).call().transfer("send", 0, 1).transfer("send", 0, 1).status("0", 40, -1, 40)
    assert read_calls(mixed).arrived == {KEY: 1}
    assert read_calls(Document(PAIR).call().status("0", 40, -1, 40)).arrived == {KEY: 40}


def test_gloo_hides_transfers() -> None:
    assert read_calls(Document(PAIR, backend="gloo").call()).hides_transfers
    assert not read_calls(Document(PAIR).call()).hides_transfers


def test_nccl2_hides_batches_of_transfers_and_nccl_does_not() -> None:
    """The members of a batch are complete when they are made, and nothing shows the batch."""
    assert read_calls(Document(PAIR, backend="nccl2").call().transfer("recv", 0, 1)).hides_transfers
    assert not read_calls(Document(PAIR, backend="nccl2").call()).hides_transfers
    assert not read_calls(Document(PAIR).call().transfer("recv", 0, 1)).hides_transfers


@pytest.mark.parametrize(
    ("backend", "state", "is_at_issue"),
    [
        ("c10d", "scheduled", True),  # torch 2.14
        ("ucc", "scheduled", True),  # torch 2.15: a backend that reports no end of a call
        ("mine", "scheduled", True),
        ("nccl2", "completed", False),
        ("nccl", "scheduled", False),  # it has timed out
        ("gloo", "scheduled", False),  # whose recorder writes no other state
    ],
)
def test_a_recorder_that_ends_calls_when_they_are_made_is_known_by_them(
    backend: str, state: str, is_at_issue: bool
) -> None:
    calls = read_calls(Document(PAIR, backend=backend).call(state=state, retired=True))
    assert calls.ends_at_issue == is_at_issue
    assert not read_calls(Document(PAIR, backend=backend).pending()).ends_at_issue
