"""Where ranks meet: who waits in a call, who has not made it, who cannot come to it, and who made another one."""

from collections.abc import Collection, Mapping

import pytest

from holdfast_core.diagnosis.devices.shared_calls import earlier_mismatch, shared_calls
from holdfast_core.diagnosis.wait_for_graph import SharedCall
from tests.core.diagnosis.devices.jobs import judge, read_all
from tests.support.recorder_documents import Document

PAIR = {"0": (0, 1)}
TRIO = {"0": (0, 1, 2)}
TWO = {"0": (0, 1), "a": (0, 1)}


def found(
    documents: Mapping[int, Document], world_size: int | None = None, dead: Collection[int] = ()
) -> list[SharedCall]:
    return shared_calls(read_all(documents, world_size, dead=dead), dead)


def only(documents: Mapping[int, Document], world_size: int | None = None, dead: Collection[int] = ()) -> SharedCall:
    (shared,) = found(documents, world_size, dead)
    return shared


def transfer_of(rank: int, calls: list[SharedCall]) -> SharedCall:
    (shared,) = [call for call in calls if call.waiters == (rank,) and not call.seq]
    return shared


# Collectives.


def test_a_dead_rank_misses_a_call_that_it_has_made_and_not_completed_and_waits_in_none() -> None:
    shared = only({rank: Document(TRIO).call().pending() for rank in range(3)}, dead=[1])
    assert (shared.waiters, shared.missing, shared.behind) == ((0, 2), (1,), ())


def test_a_dead_rank_does_not_miss_a_call_that_it_has_completed() -> None:
    documents = {0: Document(PAIR).call().pending(), 1: Document(PAIR).call().call()}
    assert only(documents, dead=[1]).missing == ()


def test_a_call_has_the_name_that_those_who_wait_gave_it() -> None:
    shared = only({0: Document(PAIR).call("broadcast"), 1: Document(PAIR).pending("all_gather")})
    assert (shared.op, shared.waiters) == ("all_gather", (1,))
    assert shared.sides == (
        ("broadcast of 4 elements of type Float", (0,)),
        ("all_gather of 4 elements of type Float", (1,)),
    )


def test_a_batch_of_which_a_ring_has_lost_members_is_on_no_side() -> None:
    """The ring of rank 1 begins in the middle of the batch."""
    whole = Document(PAIR, first_record=60).coalesced(["all_reduce"] * 3, state="scheduled")
    cut = Document(PAIR, first_record=60).coalesced(["all_reduce"] * 3, state="scheduled")
    whole.entries.insert(0, whole.entries[0] | {"record_id": 59, "collective_seq_id": 0, "retired": True})
    del cut.entries[0]
    shared = only({0: whole, 1: cut})
    assert (shared.waiters, shared.sides) == ((0, 1), ())


def test_who_has_not_made_a_call_is_missing_and_not_behind() -> None:
    waiting, elsewhere = Document(TWO).call().pending(), Document(TWO).call().pending(group="a")
    shared = next(shared for shared in found({0: waiting, 1: elsewhere}) if shared.group[0] == "0")
    assert (shared.missing, shared.behind, shared.is_complete) == ((1,), (), False)


def test_who_made_a_call_after_one_that_is_pending_is_behind() -> None:
    late = Document(TWO).pending(group="a").pending()
    shared = next(one for one in found({0: Document(TWO).pending(), 1: late}) if one.group[0] == "0")
    assert (shared.waiters, shared.fronts, shared.behind, shared.missing) == ((0, 1), (0,), (1,), ())
    assert not shared.is_complete


def test_who_has_completed_a_call_is_not_behind_whatever_it_waits_for_now() -> None:
    past = Document(TWO).call().pending(group="a")
    shared = next(one for one in found({0: Document(TWO).pending(), 1: past}) if one.group[0] == "0")
    assert (shared.missing, shared.behind) == ((), ())


def test_who_waits_in_a_later_call_of_the_group_has_completed_the_one_that_its_ring_has_lost() -> None:
    ahead = Document(PAIR, first_record=90).call(seq=7).pending()
    assert [(one.seq, one.behind, one.missing) for one in found({0: Document(PAIR).pending(seq=3), 1: ahead})] == [
        (3, (), ()),
        (8, (), (0,)),
    ]


def test_who_may_have_lost_an_older_call_is_behind_in_one_that_left_the_ring() -> None:
    """Rank 1 has made call 5, which its ring no longer shows, and waits in a call of another group."""
    full = Document(TWO, first_record=90).call(group="a").pending(group="a").status("0", 5, -1, 5)
    shared = next(one for one in found({0: Document(TWO).pending(seq=5), 1: full}) if one.group[0] == "0")
    assert (shared.behind, shared.missing) == ((1,), ())


def test_a_call_that_a_device_has_reached_is_not_behind_another_one() -> None:
    """Rank 1 has two streams, and both calls run."""
    running = Document(TWO).call(group="a", state="started", retired=False).call(state="started", retired=False)
    shared = next(one for one in found({0: Document(TWO).pending(), 1: running}) if one.group[0] == "0")
    assert shared.behind == ()


def test_a_device_is_late_only_if_that_of_another_rank_has_reached_the_call() -> None:
    late, reached = Document(PAIR).call().pending(), Document(PAIR).call().call(state="started", retired=False)
    late.status("0", 2, 1, 1)
    reached.status("0", 2, 2, 1)
    assert only({0: late, 1: reached}).unstarted == (0,)
    assert only({0: late, 1: late}).unstarted == ()


def test_a_device_of_which_nothing_is_known_is_not_late() -> None:
    """Rank 0 was started without times of the devices."""
    reached = Document(PAIR).call().call(state="started", retired=False).status("0", 2, 2, 1)
    assert only({0: Document(PAIR).call().pending(), 1: reached}).unstarted == ()


# Earlier calls that differ.


def mismatch(documents: Mapping[int, Document]) -> int | None:
    ranks = judge(documents).ranks
    earlier = earlier_mismatch(ranks, next(one for one in shared_calls(ranks, ()) if one.group[0] == "0"))
    return earlier.seq if earlier is not None else None


def test_the_first_call_before_the_pending_one_that_differs_is_found() -> None:
    first = Document(PAIR).call().call().call("reduce").call().pending()
    assert mismatch({0: first, 1: Document(PAIR).call().call("broadcast").call().call()}) == 2


def test_calls_of_other_groups_have_their_own_numbers() -> None:
    groups = {"0": (0, 1), "b": (1, 2)}
    assert (
        mismatch({0: Document(PAIR).call().pending(), 1: Document(groups).call().call("broadcast", group="b")}) is None
    )


def test_calls_after_the_pending_one_prove_nothing() -> None:
    first = Document(PAIR).call().pending().pending("broadcast")
    assert mismatch({0: first, 1: Document(PAIR).call().pending().pending()}) is None


# Sends and receives.


def test_a_dead_peer_misses_its_side_and_waits_in_none() -> None:
    receiving = Document(PAIR).transfer("recv", 0, 1, state="scheduled")
    (shared,) = found({0: receiving, 1: Document(PAIR).transfer("send", 1, 0, state="scheduled")}, dead=[1])
    assert (shared.waiters, shared.missing) == ((0,), (1,))


def test_a_peer_without_a_dump_is_unclear() -> None:
    shared = only({0: Document(PAIR).transfer("recv", 0, 1, state="scheduled")}, 2)
    assert (shared.missing, shared.unclear, shared.is_counted) == ((), (1,), True)


def test_a_transfer_behind_another_call_holds_up_its_own_rank_first() -> None:
    document = Document(TWO).pending(group="a").transfer("recv", 0, 1, state="scheduled")
    shared = transfer_of(0, found({0: document, 1: Document(TWO)}))
    assert (shared.fronts, shared.behind, shared.missing) == ((), (0,), (1,))


def test_the_side_that_a_peer_makes_after_a_pending_call_is_behind() -> None:
    receiving = Document(TWO).transfer("recv", 0, 1, state="scheduled")
    sending = Document(TWO).pending(group="a").transfer("send", 1, 0, state="scheduled")
    shared = transfer_of(0, found({0: receiving, 1: sending}))
    assert (shared.fronts, shared.missing, shared.behind) == ((0,), (), (1,))


def test_a_ring_that_has_lost_calls_pairs_by_what_is_pending_in_the_same_group_with_the_same_peer() -> None:
    """Nothing but the other side of this transfer answers: no send to another rank, no receive, no other group's."""
    groups = {"0": (0, 1, 2), "a": (0, 1)}
    receiving = Document(groups, first_record=70).call(seq=9).transfer("recv", 0, 1, state="scheduled")

    def shared(*transfers: tuple[str, int, int, str]) -> SharedCall:
        peer = Document(groups, first_record=70).call(seq=9)
        for way, one, other, group in transfers:
            peer.transfer(way, one, other, group, state="scheduled")
        return transfer_of(0, found({0: receiving, 1: peer, 2: Document(groups)}))

    others = (("send", 1, 2, "0"), ("recv", 1, 0, "0"), ("send", 1, 0, "a"))
    assert (shared().missing, shared().is_counted) == ((1,), False)
    assert shared(*others).missing == (1,)
    assert shared(("send", 1, 0, "0")).missing == shared(("send", 1, 0, "0")).behind == ()
    behind = shared(("send", 1, 2, "0"), ("send", 1, 0, "0"))
    assert (behind.missing, behind.unclear, behind.behind) == ((), (), (1,))


@pytest.mark.parametrize("full", [0, 1])
def test_one_ring_that_has_lost_calls_is_enough_to_count_none(full: int) -> None:
    documents = {
        rank: Document(PAIR, first_record=70 if rank == full else 0).transfer(way, rank, 1 - rank, state="scheduled")
        for rank, way in enumerate(("recv", "send"))
    }
    assert [shared.is_counted for shared in found(documents)] == [False, False]


def test_a_batch_with_two_peers_of_which_one_may_not_have_come() -> None:
    """One peer's side is pending, so that the other one must be missing. If none is, either may be."""
    batch = Document(TRIO, first_record=70).batch(("recv", 0, 1), ("recv", 0, 2), state="scheduled")
    answered = Document(TRIO, first_record=70).transfer("send", 1, 0, state="scheduled")
    silent = Document(TRIO, first_record=70).call(seq=9)
    one = transfer_of(0, found({0: batch, 1: answered, 2: silent}))
    assert (one.missing, one.unclear) == ((2,), ())
    either = transfer_of(0, found({0: batch, 1: silent, 2: silent}))
    assert (either.missing, either.unclear) == ((), (1, 2))
    with_unread = transfer_of(0, found({0: batch, 1: silent}, 3))
    assert (with_unread.missing, with_unread.unclear) == ((), (1, 2))
    with_dead = transfer_of(0, found({0: batch, 1: silent}, 3, dead=[2]))
    assert (with_dead.missing, with_dead.unclear) == ((2,), (1,))


def test_a_dump_of_pending_calls_alone_does_not_show_that_a_side_is_missing() -> None:
    partial = Document(PAIR).call().call().pending()
    del partial.entries[1]
    receiving = Document(PAIR).transfer("recv", 0, 1, state="scheduled")
    shared = transfer_of(0, found({0: receiving, 1: partial}))
    assert (shared.missing, shared.unclear) == ((), (1,))


def test_a_host_inside_of_its_oldest_transfer_is_inside() -> None:
    document = Document(PAIR).transfer("send", 0, 1).transfer("send", 0, 1, state="scheduled").status("0", 1, -1, 1)
    assert transfer_of(0, found({0: document, 1: Document(PAIR)})).inside == (0,)
    behind = Document(TWO).pending(group="a").transfer("send", 0, 1, state="scheduled").status("0", -1, -1, -1)
    assert transfer_of(0, found({0: behind, 1: Document(TWO)})).inside == ()
