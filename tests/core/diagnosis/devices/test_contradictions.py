"""Dumps that were not taken at one time, or that show a call complete on some members only."""

import pytest

from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence
from holdfast_core.texts.device_calls import contradiction_text, reasons_of, verdict_of
from tests.core.diagnosis.devices.jobs import judge, named, only_cause
from tests.support.recorder_documents import Document

WORLD = (0, 1, 2, 3)


def steps(count: int, op: str = "all_reduce", **others: int) -> Document:
    document = Document({"0": WORLD}, **others)  # type: ignore[arg-type]
    for _ in range(count):
        document.call(op)
    return document


def test_a_dump_that_is_older_names_nobody_and_the_others_are_judged_with_little_confidence() -> None:
    """Rank 0's dump is left from an earlier attempt. Rank 3 has not come."""
    diagnosis = judge({0: steps(5), 1: steps(20).pending(), 2: steps(20).pending(), 3: steps(20)})
    cause = only_cause(diagnosis)
    assert (cause.kind, cause.ranks, cause.confidence) == (CauseKind.MISSING_RANK, (3,), Confidence.LOW)
    (odd,) = diagnosis.contradictions
    assert (odd.rank, odd.seq, odd.others, odd.is_made) == (0, 20, (1, 2, 3), False)
    assert diagnosis.unread == () and 0 not in diagnosis.ranks
    assert (
        contradiction_text(odd)
        == "ranks 1, 2 and 3 completed call 20 of group 0, and rank 0 has not made it: its dump is older"
    )


def test_a_call_that_others_have_completed_holds_up_nobody() -> None:
    documents = {rank: steps(20) for rank in WORLD} | {2: steps(16).pending()}
    diagnosis = judge(documents)
    assert diagnosis.causes == () and diagnosis.waits == ()
    (odd,) = diagnosis.contradictions
    assert (odd.rank, odd.is_made) == (2, False)


def test_the_advice_is_to_take_all_dumps_again() -> None:
    diagnosis = judge({rank: steps(20) for rank in WORLD} | {2: steps(16).pending(), 3: steps(16)})
    nothing = Cause(CauseKind.NOTHING_PENDING, (), None, Confidence.LOW)
    assert list(reasons_of(nothing, diagnosis)) == [
        "the dumps of ranks 2 and 3 are left out, as others contradict them: take all again, at one time"
    ]


def test_a_call_that_ended_on_some_members_only_is_said_to_be_one_of_two_things() -> None:
    """Ranks 2 and 3 have made all calls, too: perhaps the network lost the end of call 17."""
    late = steps(16).pending().pending().pending().pending()
    diagnosis = judge({rank: steps(20) for rank in WORLD} | {2: late, 3: late})
    odd = diagnosis.contradictions[0]
    assert diagnosis.causes == () and (odd.rank, odd.seq, odd.is_made) == (2, 20, True)
    assert contradiction_text(odd) == (
        "ranks 0 and 1 completed call 20 of group 0, and rank 2 has not:"
        " its dump is older, or the end of the call did not reach its device"
    )


def test_a_rank_that_alone_still_holds_a_call_is_the_cause() -> None:
    """The others cannot have finished call 17 without it."""
    late = steps(16).pending().pending().pending().pending()
    diagnosis = judge({rank: steps(20).pending() for rank in WORLD} | {2: late})
    cause = only_cause(diagnosis)
    assert (cause.kind, cause.ranks, cause.call and cause.call.seq) == (CauseKind.STUCK_DEVICE, (2,), 17)
    assert diagnosis.contradictions == ()
    assert verdict_of(cause) == (
        "rank 2 alone still holds call 17 (all_reduce) of group 0: its device, its stream or its watchdog is stuck"
    )
    assert list(reasons_of(cause, diagnosis)) == [
        "ranks 0, 1 and 3 completed it, which nobody can before all have taken part"
    ]


def test_a_rank_that_alone_holds_a_call_and_lacks_another_has_an_older_dump() -> None:
    groups = {"0": WORLD, "pair": (2, 3)}
    late = Document(groups).call().pending().call(group="pair")
    others = {rank: Document(groups).call().call() for rank in (0, 1)}
    diagnosis = judge({**others, 2: late, 3: Document(groups).call().call().call(group="pair").call(group="pair")})
    assert diagnosis.causes == () and [odd.rank for odd in diagnosis.contradictions] == [2]


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter"])
def test_a_call_that_may_end_before_all_have_come_contradicts_nothing(op: str) -> None:
    """The root of a broadcast, and the others of a reduce, need not wait for all. So nobody holds one alone, either."""
    diagnosis = judge({0: steps(20, op), **{rank: steps(19, op).pending(op) for rank in (1, 2)}, 3: steps(19, op)})
    assert (diagnosis.contradictions, named(diagnosis)) == ((), (CauseKind.MISSING_RANK, (3,)))


def test_different_calls_under_one_number_are_a_mismatch_and_no_older_dump() -> None:
    documents = {rank: steps(5).call(elements=8) for rank in WORLD} | {0: steps(5).pending()}
    diagnosis = judge(documents)
    assert diagnosis.contradictions == () and only_cause(diagnosis).kind == CauseKind.MISMATCHED_CALL


def test_a_call_of_number_0_contradicts_nothing() -> None:
    odd = Document({"0": WORLD}).pending(seq=0)
    assert judge({0: odd, **{rank: Document({"0": WORLD}) for rank in (1, 2, 3)}}).contradictions == ()


def test_the_dump_of_a_dead_rank_may_be_older() -> None:
    documents = {rank: steps(20).pending() for rank in WORLD} | {2: steps(7)}
    diagnosis = judge(documents, dead=[2])
    assert (named(diagnosis), diagnosis.contradictions) == ((CauseKind.DEAD_RANK, (2,)), ())


def test_a_status_that_a_stuck_watchdog_left_behind_is_no_pending_call_and_clears_nobody() -> None:
    """The ring of rank 1 has lost all calls, and its status shows call 5 as pending. Others have completed call 20."""
    stuck = Document({"0": WORLD, "a": (0, 1)}, first_record=90).call(group="a").status("0", 20, -1, 4)
    others = {rank: Document({"0": WORLD, "a": (0, 1)}).call(group="a") for rank in (0, 2, 3)}
    for document in others.values():
        for _ in range(20):
            document.call()
    others[0].pending(group="a")
    diagnosis = judge({**others, 1: stuck})
    assert diagnosis.contradictions == () and diagnosis.ranks[1].pending == []
    assert named(diagnosis) == (CauseKind.UNKNOWN, ())


def test_a_recorder_that_ends_calls_when_they_are_made_contradicts_nobody() -> None:
    ended = Document({"0": WORLD}, backend="c10d")
    for _ in range(20):
        ended.call()
    assert judge({0: ended, **{rank: steps(5) for rank in (1, 2, 3)}}).contradictions == ()
