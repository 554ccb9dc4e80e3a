"""How sure a diagnosis of files can be, what it rests on, and how people and scripts see it."""

from collections.abc import Mapping

import pytest

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_cli.analysis.diagnosis_report import as_lines, as_object, diagnose_dumps, named_ranks, was_busy, world_of
from holdfast_cli.analysis.dump_folder import Dumps
from holdfast_core.diagnosis.devices.causes import Confidence
from tests.support.recorder_documents import SECOND_NS, START_NS, Document

TRIO = {"0": (0, 1, 2)}


def dumps_of(documents: Mapping[int, Document], **others: object) -> Dumps:
    dumps = {rank: from_document(document.document()) for rank, document in documents.items()}
    return Dumps(dumps, **others)  # type: ignore[arg-type]


def late(written_s: float | None = None) -> Dumps:
    """Return dumps in which rank 2 misses call 4. The newest call was made at second 3."""
    waiting, missing = Document(TRIO).call().call().call().pending(), Document(TRIO).call().call().call()
    found = dumps_of({0: waiting, 1: waiting, 2: missing})
    if written_s is not None:
        found.written_ns.extend([START_NS, START_NS + int(written_s * SECOND_NS)])
    return found


def basis(found: Dumps) -> str:
    (line,) = [line for line in as_lines(found, diagnose_dumps(found)) if line.startswith("based on: ")]
    return line


@pytest.mark.parametrize(
    ("written_s", "is_busy"),
    [(None, False), (2.9, False), (3.0, True), (12.9, True), (13.0, False), (1000.0, False)],
)
def test_dumps_of_ranks_that_made_calls_until_just_before_prove_little(written_s: float | None, is_busy: bool) -> None:
    """In a job that runs, some rank is always a call behind the others."""
    found = late(written_s)
    assert was_busy(found) == is_busy
    diagnosis = diagnose_dumps(found)
    assert diagnosis.culprits == (2,)
    assert [cause.confidence for cause in diagnosis.causes] == [Confidence.LOW if is_busy else Confidence.HIGH]
    assert ("with --earlier it shows whether the job runs" in basis(found)) == is_busy


def test_dumps_without_times_were_not_busy() -> None:
    found = late(3.0)
    for dump in found.dumps.values():
        for call in dump.calls:
            call.created_ns = 0
    found.written_ns[:] = [5]
    assert not was_busy(found)
    assert not was_busy(Dumps(written_ns=[5]))


def test_with_earlier_dumps_it_does_not_matter_when_the_newer_ones_were_made() -> None:
    found = late(3.0)
    diagnosis = diagnose_dumps(found, earlier=found.dumps)
    assert [cause.confidence for cause in diagnosis.causes] == [Confidence.HIGH]


def test_the_world_is_the_group_0_of_a_dump_that_names_its_members() -> None:
    groups = {"a": (0, 1), "0": (0, 1, 2)}
    assert world_of(dumps_of({0: Document({"0": ()}).call(), 1: Document(groups)})) == (0, 1, 2)
    assert world_of(dumps_of({1: Document({"a": (0, 1)})})) == ()


def test_ranks_are_named_by_dumps_by_stacks_by_groups_and_by_hand() -> None:
    found = dumps_of({1: Document({"a": (1, 4)})}, stacks={6: "Thread 1"})
    assert named_ranks(found, [8]) == {1, 4, 6, 8}
    assert diagnose_dumps(found, dead=frozenset({8})).unread == (0, 2, 3, 4, 5, 6, 7)
    assert named_ranks(dumps_of({3: Document({})})) == {3}


def test_the_place_of_the_newest_call_of_a_named_rank_is_shown() -> None:
    found = late()
    for number, call in enumerate(found.dumps[2].calls):
        call.frame = f"/me/train.py:{number} step"
    lines = list(as_lines(found, diagnose_dumps(found)))
    assert lines[2] == "  rank 2 made its newest call at /me/train.py:2 step"
    unread = dumps_of({rank: Document(TRIO).pending() for rank in (0, 1)})
    assert not any("newest call at" in line for line in as_lines(unread, diagnose_dumps(unread, dead=frozenset({2}))))


def test_the_basis_has_all_that_makes_the_dumps_weaker() -> None:
    wrapped = Document(TRIO, first_record=40).call(seq=40).call()
    partial = Document(TRIO).pending().call().pending()
    partial.entries.pop(1)
    found = dumps_of({0: wrapped, 1: partial, 2: Document({})}, stacks={0: "Thread 1", 2: "Thread 1"})
    found.dumps[0].bad_entries = 1
    found.dumps[2].version = ""
    text = basis(found)
    for part in (
        "3 dumps (format 2.10, without version)",
        "1 without the oldest calls: the ring is full",
        "1 with pending calls only",
        "1 without any call",
        "no times of the devices",
        "stacks of ranks 0 and 2",
        "1 entry without sense left out",
    ):
        assert part in text
    found.dumps[1].bad_entries = 2
    assert "3 entries without sense left out" in basis(found)


def test_a_dump_without_its_oldest_calls_may_hold_the_pending_calls_alone() -> None:
    alone = dumps_of({0: Document(TRIO, first_record=5).pending()})
    assert "1 without the oldest calls: the ring is full, or only pending calls were dumped" in basis(alone)


def test_the_basis_of_a_single_good_dump_is_short() -> None:
    alone = dumps_of({0: Document({"0": (0,)}).call(state="started", retired=False)})
    assert basis(alone) == "based on: 1 dump (format 2.10)"


def test_the_basis_names_ranks_without_dumps_and_what_gloo_leaves_out() -> None:
    gloo = dumps_of({0: Document(TRIO, backend="gloo").call(), 2: Document(TRIO).call()})
    left_out = "; perhaps not all pending point-to-point calls: the recorders of gloo and nccl2 leave them out"
    assert "; no readable dump of rank 1; " in basis(gloo) and left_out in basis(gloo)


def test_a_few_files_that_were_left_out_are_shown_and_all_are_in_the_object() -> None:
    found = late()
    found.refused.extend(f"file-{number}: why" for number in range(25))
    diagnosis = diagnose_dumps(found)
    lines = [line for line in as_lines(found, diagnosis) if line.startswith("  left out ")]
    assert len(lines) == 21 and lines[-2:] == ["  left out file-19: why", "  left out 5 more: --json has all"]
    assert len(as_object(found, diagnosis)["refused"]) == 25


def test_causes_and_waits_have_their_call() -> None:
    found = as_object(late(), diagnose_dumps(late()))
    (cause,), wait = found["causes"], found["waits"][0]
    assert [(one["group"], one["op"], one["seq"]) for one in (cause, wait)] == [("0", "all_reduce", 4)] * 2
    assert wait["certain"] is True


def test_a_transfer_has_no_number_and_a_call_that_a_ring_has_lost_no_operation() -> None:
    pair = {"0": (0, 1)}
    transfer = dumps_of({0: Document(pair).call().transfer("recv", 0, 1, state="scheduled"), 1: Document(pair).call()})
    lost = dumps_of({0: Document(pair).status("0", 8, -1, 7), 1: Document(pair).call(seq=7)})
    for dumps, op, seq in ((transfer, "recv 0<-1", None), (lost, None, 8)):
        found = as_object(dumps, diagnose_dumps(dumps))
        for one in (found, found["causes"][0], found["waits"][0]):
            assert (one["op"], one["seq"]) == (op, seq)


def test_waits_that_are_not_certain_are_said_to_be_perhaps() -> None:
    unread = dumps_of({rank: Document(TRIO).pending() for rank in (0, 1)})
    last = list(as_lines(unread, diagnose_dumps(unread)))[-1]
    assert last == "  ranks 0 and 1 in call 1 (all_reduce) of group 0: perhaps for rank 2"


def test_nothing_is_said_of_waits_where_nobody_waits() -> None:
    idle = dumps_of({rank: Document(TRIO).call() for rank in range(3)})
    lines = list(as_lines(idle, diagnose_dumps(idle)))
    assert lines[0] == "no recorder shows for sure a call that others wait in (confidence: low)"
    assert "who waits for whom:" not in lines
