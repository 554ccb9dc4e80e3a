"""A diagnosis in words: one line that says what happened, with the rank and the call, and one that says what to do."""

import pytest

from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence
from holdfast_core.diagnosis.wait_for_graph import SharedCall
from holdfast_core.texts.device_calls import call_text, next_step, ranks_text, reasons_of, verdict_of
from tests.core.diagnosis.devices.jobs import judge, only_cause
from tests.support.recorder_documents import Document

GROUP = ("0", (0, 1, 2, 3))
CALL = SharedCall(GROUP, 7, "all_reduce", waiters=(0, 1), fronts=(0, 1), missing=(3,))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([2, 1, 2], "ranks 1 and 2"),
        ([3, 1, 2], "ranks 1, 2 and 3"),
        (range(8), "ranks 0, 1, 2, 3, 4, 5, 6 and 7"),
        (range(100), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"),
    ],
)
def test_ranks_are_listed_and_many_are_counted(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_a_call_has_its_number_its_operation_and_its_group() -> None:
    assert call_text(CALL) == "call 7 (all_reduce) of group 0"
    assert call_text(SharedCall(GROUP, 7, "", (0,))) == "call 7 of group 0"
    assert call_text(SharedCall(GROUP, 0, "send 0->1", (0,))) == "send 0->1 of group 0 (by ranks of the group)"


@pytest.mark.parametrize("kind", CauseKind)
@pytest.mark.parametrize("shared", [CALL, None])
@pytest.mark.parametrize("ranks", [(), (3,), (2, 3)])
def test_every_kind_has_one_line_for_what_happened_and_one_for_what_to_do(
    kind: CauseKind, shared: SharedCall | None, ranks: tuple[int, ...]
) -> None:
    cause = Cause(kind, ranks, shared, Confidence.LOW, (1, 2))
    for text in (verdict_of(cause), next_step(cause)):
        assert text.strip() and "\n" not in text and "{" not in text and "None" not in text


def test_a_missing_rank_in_words() -> None:
    documents = {rank: Document({"0": GROUP[1]}).call().pending() for rank in (0, 1, 2)}
    diagnosis = judge(documents | {3: Document({"0": GROUP[1]}).call()})
    cause = only_cause(diagnosis)
    assert verdict_of(cause) == "rank 3 has not made call 2 (all_reduce) of group 0, in which ranks 0, 1 and 2 wait"
    assert list(reasons_of(cause, diagnosis)) == [
        "rank 3 has no call of its own pending, and its newest call there is 1"
    ]
    assert next_step(cause) == "look at the stack and the log of rank 3: what keeps the host from this call"


def test_both_sides_of_a_mismatch_are_shown() -> None:
    pair = {"0": (0, 1)}
    diagnosis = judge({0: Document(pair).pending(), 1: Document(pair).pending("broadcast")})
    assert list(reasons_of(only_cause(diagnosis), diagnosis)) == [
        "rank 0 made all_reduce of 4 elements of type Float",
        "rank 1 made broadcast of 4 elements of type Float",
    ]


def test_a_rank_without_a_dump_is_said_to_prove_nothing() -> None:
    diagnosis = judge({rank: Document({"0": (0, 1, 2)}).call().pending() for rank in (0, 1)}, 3)
    reasons = list(reasons_of(only_cause(diagnosis), diagnosis))
    assert reasons[-1] == "rank 2 has no readable dump, and that alone proves nothing"


def test_members_that_are_a_guess_are_said_to_be_one() -> None:
    diagnosis = judge({rank: Document({"0": ()}).pending() for rank in (0, 1)}, is_world_known=False)
    cause = only_cause(diagnosis)
    assert list(reasons_of(cause, diagnosis)) == [
        "ranks 0 and 1 made it, and no dump says whether group 0 has other members"
    ]
    assert next_step(cause) == "add the dumps of all ranks, or say how many ranks there are"


def test_a_recorder_that_ends_calls_when_they_are_made_is_no_proof_that_nobody_waits() -> None:
    cause = Cause(CauseKind.NOTHING_PENDING, (), None, Confidence.LOW)
    hooked, own = (Document({"0": (0, 1)}, backend=name).call(retired=True) for name in ("c10d", "nccl"))
    assert list(reasons_of(cause, judge({0: own, 1: own}))) == []
    assert list(reasons_of(cause, judge({0: own, 1: hooked}))) == [
        "the recorder of rank 1 ends calls when they are made, not when they complete, so it cannot show who hangs"
    ]


def test_the_parties_of_a_transfer_are_its_two_sides_and_not_the_whole_group() -> None:
    group = {"pp": (0, 2, 4, 6)}
    documents = {
        0: Document(group).transfer("recv", 0, 1, group="pp", state="scheduled"),
        2: Document(group).transfer("send", 1, 0, group="pp", state="scheduled"),
        4: Document(group),
        6: Document(group),
    }
    diagnosis = judge(documents, 7)
    (cause,) = diagnosis.causes
    assert verdict_of(cause).startswith("both sides have made recv 0<-1 of group pp (by ranks of the group)")
    assert list(reasons_of(cause, diagnosis)) == ["ranks 0 and 2 have made it, and no older call is pending on them"]
    assert next_step(cause).endswith("NCCL's log of the nodes of ranks 0 and 2")


def test_others_wait_only_if_there_are_others() -> None:
    pair = {"a": (0, 1), "b": (0, 1)}
    one = Document(pair).pending(group="a").pending(group="b")
    (cause,) = judge({0: one, 1: Document(pair).pending(group="b").pending(group="a")}).causes
    assert verdict_of(cause).startswith("ranks 0 and 1 wait for each other: ")
