"""Which of several causes wins, what excuses a rank that has nothing pending, and where circles of waits begin."""

from collections.abc import Mapping

import pytest

from holdfast_core.diagnosis.devices.causes import CauseKind, Confidence, Place
from tests.core.diagnosis.devices.jobs import judge, named, only_cause
from tests.support.recorder_documents import Document

WORLD = (0, 1, 2, 3)


def steps(count: int, first: int = 1, *, backend: str = "nccl") -> Document:
    """Return the recorder of a rank that has completed calls of the world. Above 1, ``first`` makes it a full ring."""
    document = Document({"0": WORLD}, first_record=first - 1, backend=backend)
    for number in range(count):
        document.call(seq=first + number)
    return document


# Ranks in the set-up of a process group.


@pytest.mark.parametrize(
    ("places", "kind", "ranks", "suspects"),
    [
        ((Place.SET_UP, Place.SET_UP, Place.USER_CODE), CauseKind.MISSING_RANK, (2,), ()),
        ((Place.CALL, Place.LAUNCH, Place.ELSEWHERE), CauseKind.MISSING_RANK, (2,), ()),
        ((Place.SET_UP, Place.USER_CODE, Place.DATA), CauseKind.UNKNOWN, (), (1, 2)),
        ((Place.SET_UP, Place.USER_CODE, Place.UNKNOWN), CauseKind.UNKNOWN, (), (1, 2)),
        ((Place.SET_UP, Place.UNKNOWN, Place.UNKNOWN), CauseKind.UNKNOWN, (), (1, 2)),
        ((Place.SET_UP, Place.SET_UP, Place.SET_UP), CauseKind.UNKNOWN, (), ()),
    ],
)
def test_the_only_rank_that_is_elsewhere_holds_up_a_set_up(
    places: tuple[Place, ...], kind: CauseKind, ranks: tuple[int, ...], suspects: tuple[int, ...]
) -> None:
    documents = {rank: Document({"0": (0, 1, 2)}).call() for rank in range(3)}
    cause = only_cause(judge(documents, places=dict(enumerate(places))))
    assert (cause.kind, cause.ranks, cause.suspects, cause.call) == (kind, ranks, suspects, None)


def test_a_place_in_a_call_shows_nothing_if_no_recorder_is_on() -> None:
    """Then a rank that is in a call is where it would be anyway."""
    off = {rank: Document({}) for rank in range(3)}
    in_call = {0: Place.CALL, 1: Place.CALL, 2: Place.USER_CODE}
    assert judge(off, places=in_call).causes == ()
    assert named(judge(off, places=in_call | {0: Place.SET_UP})) == (CauseKind.MISSING_RANK, (2,))
    one_is_on = off | {1: Document({"0": (0, 1, 2)}).call()}
    assert named(judge(one_is_on, places=in_call)) == (CauseKind.MISSING_RANK, (2,))


def test_of_the_ranks_that_are_elsewhere_those_that_others_wait_for_are_named() -> None:
    documents = {rank: steps(1).pending() if rank in (0, 3) else steps(1) for rank in WORLD}
    documents[4] = Document({"own": (4,)}).call(group="own")
    cause = only_cause(judge(documents, places={1: Place.SET_UP, 2: Place.USER_CODE, 4: Place.USER_CODE}))
    assert (cause.kind, cause.ranks) == (CauseKind.MISSING_RANK, (2,))
    assert cause.call is not None and cause.call.seq == 2
    unknown = only_cause(judge(documents, places={1: Place.SET_UP, 4: Place.SET_UP}))
    assert (unknown.kind, unknown.ranks, unknown.suspects) == (CauseKind.UNKNOWN, (), (2,))


# Dead ranks.


def test_a_dead_rank_is_the_likeliest_reason_if_nobody_waits_in_any_call() -> None:
    cause = only_cause(judge({rank: steps(3) for rank in (0, 2, 3)}, dead=[1]))
    assert (cause.kind, cause.ranks, cause.call, cause.confidence) == (
        CauseKind.DEAD_RANK,
        (1,),
        None,
        Confidence.MEDIUM,
    )


def test_two_dead_ranks_are_named_together_although_one_is_waited_for() -> None:
    documents = {0: Document({"0": (0, 2)}).pending(), 1: Document({"1": (1,)}).call(group="1")}
    cause = only_cause(judge(documents, dead=[3, 2]))
    assert (cause.kind, cause.ranks, cause.confidence) == (CauseKind.DEAD_RANK, (2, 3), Confidence.HIGH)
    assert cause.call is not None and cause.call.group == ("0", (0, 2))


def launching(dead: int, first: tuple[int, int]) -> tuple[Mapping[int, Document], int]:
    """Return a job in which rank 3 does not return from a call with 2, and rank 0 waits for rank ``first[1]``."""
    pair = {"p": (2, 3)}
    inside = Document(pair).call(group="p").call(group="p", retired=False).status("p", 1, -1, 1)
    documents = {
        0: Document({"0": first}).pending(),
        1: Document({"0": first}).pending(),
        2: Document(pair).call(group="p").pending(group="p"),
        3: inside,
    }
    return {rank: document for rank, document in documents.items() if rank != dead}, dead


def test_the_end_of_a_rank_that_others_wait_for_excuses_all_others() -> None:
    documents, dead = launching(1, (0, 1))
    assert named(judge(documents, dead=[dead])) == (CauseKind.DEAD_RANK, (1,))


def test_the_end_of_a_rank_that_nobody_waits_for_excuses_nobody_that_the_calls_show() -> None:
    documents, dead = launching(4, (0, 1))
    causes = judge(documents, 5, dead=[dead]).causes
    assert [(cause.kind, cause.ranks) for cause in causes] == [(CauseKind.INSIDE_CALL, (3,))]


def test_an_idle_rank_may_wait_for_a_dead_one_even_if_its_loop_is_known() -> None:
    documents = {rank: steps(12) if rank == 2 else steps(12).pending() for rank in (0, 2, 3)}
    assert judge(documents, dead=[1]).culprits == (1,)


# Ranks that have nothing pending.


@pytest.mark.parametrize(
    ("count", "first", "names_groups", "is_certain"),
    [
        (4, 1, True, False),
        (5, 1, True, True),
        (9, 1, False, False),
        (10, 1, False, True),
        (1, 999, False, False),
        (1, 1000, False, True),
    ],
)
def test_two_idle_ranks_are_named_once_the_dump_or_the_number_shows_that_no_communicator_is_new(
    count: int, first: int, names_groups: bool, is_certain: bool
) -> None:
    def document() -> Document:
        if names_groups:
            return steps(count, first)
        old = Document({"0": ()}, first_record=first - 1).without_status()
        for number in range(count):
            old.call(seq=first + number)
        return old

    cause = only_cause(judge({0: document().pending(), 1: document(), 2: document().pending(), 3: document()}))
    found = (CauseKind.MISSING_RANK, (1, 3)) if is_certain else (CauseKind.UNKNOWN, ())
    assert (cause.kind, cause.ranks) == found


def test_an_idle_rank_may_be_making_the_communicator_of_a_pair_for_a_message_in_no_batch() -> None:
    """Ranks 1 and 3 are idle: one of them may wait for the other, or for rank 2, in its first message to it."""

    def documents(way: str) -> dict[int, Document]:
        made = {rank: steps(6) for rank in WORLD}
        for rank, other in ((0, 2), (2, 0)):
            if way == "alone":
                made[rank].transfer("send", rank, other).transfer("recv", rank, other)
            else:
                made[rank].batch(("send", rank, other), ("recv", rank, other))
            made[rank].pending()
        return made

    assert named(judge(documents("batch"))) == (CauseKind.MISSING_RANK, (1, 3))
    assert named(judge(documents("alone"))) == (CauseKind.UNKNOWN, ())


def test_idle_ranks_of_gloo_may_wait_in_transfers_however_well_their_loop_is_known() -> None:
    documents = {rank: steps(12, backend="gloo") for rank in WORLD}
    documents[0].pending()
    documents[1].pending()
    assert named(judge(documents)) == (CauseKind.UNKNOWN, ())


@pytest.mark.parametrize("place", [Place.USER_CODE, Place.DATA, Place.TEAR_DOWN])
def test_a_stack_elsewhere_names_a_rank_with_or_without_a_dump(place: Place) -> None:
    idle = {0: steps(1).pending(), 1: steps(1), 2: steps(1).pending(), 3: steps(1)}
    assert named(judge(idle, places={3: place})) == (CauseKind.MISSING_RANK, (3,))
    cause = only_cause(judge({rank: steps(1).pending() for rank in (0, 1, 2)}, 4, places={3: place}))
    assert (cause.kind, cause.ranks, cause.confidence) == (CauseKind.MISSING_RANK, (3,), Confidence.MEDIUM)


def test_the_call_in_which_most_ranks_wait_is_shown() -> None:
    groups = {"p": (0, 3), "q": (1, 2, 3)}
    documents = {rank: Document(groups).pending(group="p" if rank == 0 else "q", seq=5) for rank in (0, 1, 2)}
    cause = only_cause(judge(documents | {3: Document(groups).call(group="p")}))
    assert cause.ranks == (3,) and cause.call is not None and cause.call.group[0] == "q"


def test_of_calls_in_which_as_many_wait_the_one_with_the_lowest_number_is_shown() -> None:
    groups = {"p": (0, 2), "q": (1, 2)}
    documents = {0: Document(groups).pending(group="p", seq=5), 1: Document(groups).pending(group="q", seq=2)}
    cause = only_cause(judge(documents | {2: Document(groups).call(group="p", seq=1)}))
    assert cause.ranks == (2,) and cause.call is not None and cause.call.group[0] == "q"


# Calls that all have made.


def test_a_host_that_is_in_a_function_that_launches_the_call_of_all_is_inside_of_it() -> None:
    documents = {rank: steps(3).pending() for rank in WORLD}
    assert named(judge(documents, places={2: Place.LAUNCH})) == (CauseKind.INSIDE_CALL, (2,))


def test_a_mismatch_excuses_those_that_miss_a_later_call_of_that_group() -> None:
    """Rank 2 made a broadcast as its call 2, and the others no longer mean the same call by the number 4."""
    documents = {rank: steps(3).pending() for rank in (0, 1, 3)}
    cause = only_cause(judge(documents | {2: steps(1).call("broadcast").call()}))
    assert (cause.kind, cause.call is not None and cause.call.seq) == (CauseKind.MISMATCHED_CALL, 2)


# Circles.


def test_three_ranks_wait_for_each_other_in_a_circle_although_each_has_made_all_calls() -> None:
    groups = {"a": (0, 1), "b": (1, 2), "c": (2, 0)}
    documents = {
        0: Document(groups).pending(group="a").pending(group="c"),
        1: Document(groups).pending(group="b").pending(group="a"),
        2: Document(groups).pending(group="c").pending(group="b"),
    }
    cause = only_cause(judge(documents))
    assert (cause.kind, cause.ranks, cause.confidence) == (CauseKind.OPPOSITE_ORDER, (0, 1, 2), Confidence.MEDIUM)


def test_of_a_circle_and_those_that_wait_for_it_the_circle_is_named() -> None:
    """Rank 1 left out its call of the world. It waits for rank 2 in a call of their group, and 2 with all others."""
    groups = {"0": WORLD, "pair": (1, 2)}
    documents = {rank: Document(groups).call().call(group="pair").pending() for rank in (0, 2, 3)}
    documents[1] = Document(groups).call().call(group="pair").pending(group="pair")
    cause = only_cause(judge(documents))
    assert (cause.kind, cause.ranks) == (CauseKind.OPPOSITE_ORDER, (1, 2))
    assert cause.call is not None and cause.call.group[0] == "0"


def test_a_circle_of_transfers_that_full_rings_cannot_count_names_nobody() -> None:
    pair = {"0": (0, 1)}

    def sends_first(rank: int, first_record: int) -> Document:
        document = Document(pair, first_record=first_record).call(seq=9)
        return document.transfer("send", rank, 1 - rank, state="scheduled")

    counted = judge({rank: sends_first(rank, 0) for rank in (0, 1)})
    assert named(counted) == (CauseKind.OPPOSITE_ORDER, (0, 1))
    cause = only_cause(judge({rank: sends_first(rank, 70) for rank in (0, 1)}))
    assert (cause.kind, cause.ranks, cause.suspects) == (CauseKind.UNKNOWN, (), (0, 1))


def test_the_fewer_of_those_that_have_the_other_order_are_named() -> None:
    groups = {"a": (0, 1, 2), "b": (0, 1, 2)}
    documents = {
        rank: Document(groups).pending(group=first).pending(group=second)
        for rank, (first, second) in enumerate([("a", "b"), ("a", "b"), ("b", "a")])
    }
    causes = judge(documents).causes
    assert ({cause.kind for cause in causes}, causes[0].ranks) == ({CauseKind.OPPOSITE_ORDER}, (2,))
    assert causes[0].suspects == (0, 1, 2)


# What numbers mean after a mismatch, and what a ring still shows of one.


def test_after_a_mismatch_its_group_shows_no_circle() -> None:
    """Only rank 3 has made one more call. Afterwards all numbers of the group mean different calls."""
    groups = {"0": WORLD, "a": (0, 3)}

    def loop(rank: int) -> Document:
        document = Document(groups).call().call()
        if rank == 3:
            document.pending("broadcast")
        document.pending()
        return document.pending(group="a") if rank in (0, 3) else document

    causes = judge({rank: loop(rank) for rank in WORLD}).causes
    assert {cause.kind for cause in causes} == {CauseKind.MISMATCHED_CALL}
    assert {rank for cause in causes for rank in cause.ranks} == {3}


def test_a_later_mismatch_shows_where_the_ring_has_lost_the_first_one() -> None:
    """Rank 1 has left a call out, and rank 0's ring has lost call 5, which was the first that differed."""
    ahead = Document({"0": (0, 1)}, first_record=70).pending("reduce_scatter", seq=6).status("0", 6, -1, 4)
    behind = Document({"0": (0, 1)}).call(seq=4).pending("reduce_scatter").pending("all_gather")
    cause = only_cause(judge({0: ahead, 1: behind}))
    assert (cause.kind, cause.call and cause.call.seq) == (CauseKind.MISMATCHED_CALL, 6)


def test_the_closing_entry_of_a_batch_proves_nothing_about_the_calls_before_it() -> None:
    """Its end is recorded on another stream. Else call 2 would look like one of a CUDA graph, which never completes."""
    waiting = steps(1).pending().coalesced(["broadcast"] * 2)
    assert named(judge({rank: steps(1) if rank == 3 else waiting for rank in WORLD})) == (CauseKind.MISSING_RANK, (3,))


# How sure it is who has not come.


def test_of_several_ranks_that_have_not_come_one_may_hold_up_the_others_elsewhere() -> None:
    documents = {rank: steps(30).pending() for rank in (0, 1)} | {rank: steps(30) for rank in (2, 3)}
    cause = only_cause(judge(documents))
    assert (cause.kind, cause.ranks, cause.confidence) == (CauseKind.MISSING_RANK, (2, 3), Confidence.MEDIUM)
    cause = only_cause(judge(documents | {2: steps(30).pending()}))
    assert (cause.ranks, cause.confidence) == ((3,), Confidence.HIGH)


def test_a_rank_whose_ring_may_hide_what_is_pending_may_be_the_one_that_is_idle() -> None:
    waiting = Document({"0": WORLD}).call().pending()
    assert named(judge({0: waiting, 1: waiting, 2: waiting, 3: Document({"0": WORLD}).call()})) == (
        CauseKind.MISSING_RANK,
        (3,),
    )
    hidden = Document({"0": WORLD, "a": (1, 2)}, first_record=90).call("broadcast", group="a").without_status()
    assert named(judge({0: waiting, 1: waiting, 2: hidden, 3: Document({"0": WORLD}).call()})) == (
        CauseKind.UNKNOWN,
        (),
    )


def test_an_entry_without_sense_may_have_been_the_call_in_which_others_wait() -> None:
    damaged = steps(3).pending()
    damaged.entries[-1]["collective_seq_id"] = "?"
    damaged.without_status()
    documents = {0: steps(3).pending(), 1: steps(3).pending(), 2: damaged, 3: steps(3)}
    diagnosis = judge(documents)
    assert diagnosis.ranks[2].arrived == {} and 2 not in diagnosis.culprits
    assert named(judge(documents | {2: steps(3).pending()})) == (CauseKind.MISSING_RANK, (3,))


def test_a_loop_that_goes_on_in_the_same_group_with_another_call_names_nobody() -> None:
    """Two ranks are idle. They made messages in the world's group so far, and others wait in its next collective."""
    groups = {"0": WORLD}

    def idle(rank: int) -> Document:
        document = Document(groups).call()
        for _ in range(12):
            document.transfer("send", rank, 0)
        return document

    first = Document(groups).call()
    for rank in (2, 3):
        for _ in range(12):
            first.transfer("recv", 0, rank)
    documents = {0: first.pending(), 1: Document(groups).call().pending(), 2: idle(2), 3: idle(3)}
    assert named(judge(documents)) == (CauseKind.UNKNOWN, ())


def test_a_transfer_of_a_rank_that_its_group_does_not_name_shows_nothing_of_the_loop() -> None:
    pair = {"0": (0, 1)}
    idle = Document(pair)
    for _ in range(12):
        idle.transfer("send", 0, 1)
    stranger = Document(pair).transfer("recv", 1, 0).transfer("recv", 1, 0, state="scheduled")
    for _ in range(12):
        stranger.transfer("recv", 1, 0, state="scheduled")
    assert judge({0: idle, 1: idle, 2: stranger}).culprits == ()


# Causes that say the same.


def test_what_is_unknown_is_one_cause_with_all_suspects() -> None:
    groups = {"a": (0, 2), "b": (1, 3)}
    diagnosis = judge({0: Document(groups).pending(group="a"), 1: Document(groups).pending(group="b")}, 4)
    cause = only_cause(diagnosis)
    assert (cause.kind, cause.suspects) == (CauseKind.UNKNOWN, (2, 3))


def test_both_sides_of_transfers_are_one_cause() -> None:
    one, other = Document({"0": (0, 1)}), Document({"0": (0, 1)})
    for _ in range(3):
        one.transfer("send", 0, 1, state="scheduled")
        other.transfer("recv", 1, 0, state="scheduled")
    cause = only_cause(judge({0: one, 1: other}))
    assert (cause.kind, cause.call and cause.call.parties) == (CauseKind.GPU_OR_NETWORK, (0, 1))
