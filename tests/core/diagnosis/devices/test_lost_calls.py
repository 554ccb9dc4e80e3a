"""What a full ring, a dump of pending calls alone, or a status alone leaves open about a rank."""

from typing import Any

import pytest

from holdfast_core.diagnosis.devices.rank_calls import RankCalls
from tests.core.diagnosis.devices.jobs import read_all, read_calls
from tests.support.recorder_documents import Document

PAIR = {"0": (0, 1)}
TWO = {"0": (0, 1), "a": (0, 1)}
SEND = ("send", 0, 1)


def pending_alone(document: Document) -> Document:
    """Leave out what is done, as torch does on request: members of batches stay, because they never complete."""
    document.entries[:] = [entry for entry in document.entries if not entry["retired"]]
    return document


def among_others(document: Document) -> RankCalls:
    """Return the calls of a rank in a job whose other rank shows that the groups have collectives only."""
    return read_all({0: document, 1: Document(TWO).call().call(group="a")})[0]


def shown(calls: RankCalls) -> list[tuple[str, int]]:
    return [(call.group[0], call.seq) for call in calls.pending]


# Dumps of pending calls alone.


def test_members_of_a_batch_without_its_closing_entry_are_not_pending_in_a_dump_of_pending_calls() -> None:
    calls = read_calls(pending_alone(Document(PAIR).call().batch(SEND).call().pending()))
    assert shown(calls) == [("0", 3)]
    assert calls.is_partial and not calls.counts_exact
    coalesced = read_calls(pending_alone(Document(PAIR).call().coalesced(["all_reduce"] * 2).call().pending()))
    assert shown(coalesced) == [("0", 4)]


def test_a_single_collective_is_pending_in_a_dump_of_pending_calls() -> None:
    assert shown(read_calls(pending_alone(Document(PAIR).pending().call(group="0").pending()))) == [("0", 1), ("0", 3)]


def test_an_older_member_of_a_batch_that_may_be_complete_makes_the_oldest_call_doubtful() -> None:
    older = read_calls(pending_alone(Document(PAIR).call().batch(SEND).call().pending()))
    later = read_calls(pending_alone(Document(PAIR).pending().batch(SEND).pending()))
    both = read_calls(pending_alone(Document(PAIR).batch(SEND).pending().batch(SEND).pending()))
    assert (older.front_is_certain, later.front_is_certain, both.front_is_certain) == (False, True, False)


def test_a_rank_that_may_be_in_a_batch_is_not_idle() -> None:
    calls = read_calls(pending_alone(Document(PAIR).batch(SEND).call().batch(SEND).call()))
    assert calls.pending == [] and not calls.is_idle


def test_gaps_between_numbers_are_no_captured_calls_in_a_dump_of_pending_calls() -> None:
    assert shown(read_calls(pending_alone(Document(PAIR).pending().call().pending()))) == [("0", 1), ("0", 3)]


# Calls that became part of a graph.


def test_a_call_behind_a_gap_in_the_numbers_was_captured() -> None:
    """Calls 2 to 4 were counted and not recorded."""
    calls = read_calls(Document(PAIR).call().pending(seq=5))
    assert calls.pending == [] and calls.is_idle
    assert shown(read_calls(Document(PAIR).call().pending(seq=2))) == [("0", 2)]
    assert shown(read_calls(Document(PAIR).pending(seq=5))) == [("0", 5)]


def test_a_transfer_that_is_done_says_nothing_about_the_collectives_before_it() -> None:
    assert shown(read_calls(Document(PAIR).pending().transfer("send", 0, 1))) == [("0", 1)]


# Full rings.


@pytest.mark.parametrize(
    ("document", "is_certain"),
    [
        (Document(PAIR, first_record=70).call().pending().without_status(), True),  # it begins with a call that is done
        (Document(PAIR, first_record=70).pending().without_status(), False),
        (Document(PAIR, first_record=70).pending(seq=8).status("0", 8, -1, 7), True),  # the status shows no older one
        (Document(PAIR).pending().without_status(), True),  # it has lost none
    ],
)
def test_the_oldest_call_of_a_full_ring_is_certain_unless_it_may_have_lost_an_older_one(
    document: Document, is_certain: bool
) -> None:
    calls = read_calls(document)
    assert (len(calls.pending), calls.front_is_certain) == (1, is_certain)


def test_the_call_that_a_full_ring_has_lost_comes_first() -> None:
    groups = TWO | {"own": (0,)}
    lost = (
        Document(groups, first_record=900).pending(group="own", seq=90).call(group="a", seq=5).status("own", 90, -1, 89)
    )
    calls = among_others(lost.status("0", 8, -1, 7))
    assert shown(calls) == [("0", 8), ("own", 90)]
    assert calls.front is not None and calls.front.order == -1 and calls.front_is_certain


def test_of_two_calls_that_a_full_ring_has_lost_nothing_shows_the_older_one() -> None:
    groups = TWO | {"own": (0,)}
    lost = (
        Document(groups, first_record=900)
        .pending(group="own", seq=90)
        .pending(group="a", seq=6)
        .status("own", 90, -1, 89)
    )
    calls = among_others(lost.status("0", 8, -1, 7).status("a", 6, -1, 4))
    assert shown(calls) == [("0", 8), ("a", 5), ("own", 90), ("a", 6)]
    assert not calls.front_is_certain


def test_a_status_that_is_no_longer_updated_shows_no_lost_call() -> None:
    """Two calls are complete, and the watchdog has retired neither."""
    done: dict[str, Any] = {"state": "completed", "retired": False}
    fresh = Document(TWO, first_record=900).pending(seq=8).call(group="a").call(group="a")
    stale = Document(TWO, first_record=900).pending(seq=8).call(group="a", **done).call(group="a", **done)
    for document, is_certain in ((fresh, True), (stale, False)):
        assert among_others(document.status("0", 8, -1, 7)).front_is_certain == is_certain


def test_a_group_that_has_left_a_full_ring_may_hide_a_call_if_no_status_can_be_read() -> None:
    assert not read_calls(Document(TWO, first_record=90).call().without_status()).is_idle
    assert read_calls(Document(PAIR, first_record=90).call().without_status()).is_idle
    assert read_calls(Document(TWO).call().without_status()).is_idle  # it is not full: nobody has called there


@pytest.mark.parametrize(
    ("enqueued", "completed", "pending", "is_idle"),
    [
        (8, 8, [], True),
        (8, 7, [("0", 8)], False),
        (8, 3, [("0", 4)], False),
        (1, -1, [("0", 1)], False),  # the first call of all
        (8, -1, [], False),  # the watchdog may never have looked
    ],
)
def test_a_status_alone_shows_the_oldest_pending_call(
    enqueued: int, completed: int, pending: list[tuple[str, int]], is_idle: bool
) -> None:
    calls = among_others(Document(PAIR).status("0", enqueued, -1, completed))
    assert (shown(calls), calls.is_idle, calls.arrived) == (pending, is_idle, {("0", (0, 1)): enqueued})


def test_a_group_without_calls_has_none_unless_the_dump_leaves_calls_out() -> None:
    key = ("a", (0, 1))
    assert read_calls(Document(TWO).call()).arrived[key] == 0
    assert key not in read_calls(Document(TWO, first_record=90).call()).arrived
    assert key not in read_calls(pending_alone(Document(TWO).pending().call().pending())).arrived
    assert key not in read_calls(Document(TWO)).arrived  # there are no entries at all


def test_a_closing_entry_whose_transfers_have_left_the_ring_is_no_collective() -> None:
    document = Document(PAIR, first_record=90).batch(SEND, state="scheduled").transfer("recv", 0, 1)
    del document.entries[0]
    assert read_calls(document).pending == []


def test_other_calls_of_a_group_with_transfers_are_pending() -> None:
    plain = Document(PAIR).transfer("send", 0, 1).pending()
    batch = Document(PAIR).transfer("send", 0, 1).coalesced(["all_reduce"] * 2, state="scheduled")
    assert shown(read_calls(plain)) == shown(read_calls(batch)) == [("0", 1)]


def test_a_closing_entry_whose_collectives_have_left_the_ring_is_pending_and_says_nothing_about_them() -> None:
    document = Document(PAIR, first_record=90).coalesced(["all_reduce"] * 2, state="scheduled")
    del document.entries[:2]
    assert [(call.seq, call.op, call.signature) for call in read_calls(document).pending] == [(1, "coalesced", "")]


def test_a_pending_batch_whose_members_are_lost_is_older_than_what_comes_after_it() -> None:
    """Nothing shows which transfers it has, so the rank's oldest pending call is not known."""
    groups = {"0": (0, 1), "pp": (0, 1)}
    full = Document(groups, first_record=90).call().batch(("send", 0, 1), group="pp", state="scheduled").pending(seq=7)
    assert read_calls(full).front_is_certain
    del full.entries[0:2]  # the ring now begins with the entry that closes the batch
    other = Document(groups).batch(("recv", 1, 0), group="pp")
    assert not read_all({0: full, 1: other})[0].front_is_certain
