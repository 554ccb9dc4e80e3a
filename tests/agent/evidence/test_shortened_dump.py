"""What an agent sends of a dump: the newest calls, and nothing for which a daemon refuses the stacks next to it."""

from typing import Any

import pytest

from holdfast_agent.evidence.recorder_dump import CALLS_KEPT, from_document, shortened
from holdfast_daemon.validation.message_rules import OF_ANY_RUN
from holdfast_proto.limits import LARGEST_COUNT, NAME_CHARACTERS
from holdfast_proto.v1.recorder_pb2 import RecorderDump
from tests.support.recorder_documents import Document

GROUPS = {"0": (0, 1)}


def dump_of(calls: int, **others: Any) -> RecorderDump:
    document = Document(GROUPS)
    for _ in range(calls):
        document.call(**others)
    return from_document(document.document())


def sent(dump: RecorderDump) -> RecorderDump:
    """Return what is sent of a dump, once a daemon has taken it."""
    short = shortened(dump)
    OF_ANY_RUN.check(short)
    return short


def test_a_short_dump_is_sent_as_it_is_but_for_the_sizes_of_outputs() -> None:
    dump = dump_of(CALLS_KEPT)
    short = sent(dump)
    assert len(short.calls) == CALLS_KEPT and not short.has_wrapped
    assert dump.calls[0].output_sizes == "[[4]]" and short.calls[0].output_sizes == ""
    for call in dump.calls:
        call.ClearField("output_sizes")
    assert short == dump


def test_of_a_long_dump_the_newest_calls_are_sent_and_it_counts_as_a_full_ring() -> None:
    dump = dump_of(CALLS_KEPT + 3)
    short = sent(dump)
    assert [call.seq for call in short.calls] == list(range(4, CALLS_KEPT + 4))
    assert short.has_wrapped and short.has_calls
    assert len(dump.calls) == CALLS_KEPT + 3 and not dump.has_wrapped  # it is untouched


def test_sizes_that_are_cut_cannot_be_compared_and_are_left_out() -> None:
    assert sent(dump_of(1, input_sizes=[[1]] * 19)).calls[0].input_sizes == str([[1]] * 19)  # 95 characters
    assert sent(dump_of(1, input_sizes=[[1]] * 20)).calls[0].input_sizes == ""


def test_long_texts_are_cut() -> None:
    long = "x" * 4000
    dump = from_document(Document({long: (0, 1)}).call(long, group=long, dtype=long).document())
    dump.groups[0].description = dump.calls[0].frame = long
    short = sent(dump)
    assert {len(short.groups[0].name), len(short.groups[0].description)} == {NAME_CHARACTERS}
    assert {len(text) for text in (short.calls[0].op, short.calls[0].frame, short.calls[0].dtypes)} == {1024}


@pytest.mark.parametrize("numbers", [(LARGEST_COUNT + 1, 0, 0), (0, LARGEST_COUNT + 1, 0), (1, 1, -2)])
def test_counters_out_of_range_are_left_out(numbers: tuple[int, int, int]) -> None:
    dump = from_document(Document(GROUPS).call().status("0", *numbers).document())
    (group,) = sent(dump).groups
    assert (group.has_status, group.last_enqueued, group.last_started, group.last_completed) == (False, 0, 0, 0)


def test_the_largest_counters_are_kept() -> None:
    dump = from_document(Document(GROUPS).call().status("0", LARGEST_COUNT, -1, LARGEST_COUNT).document())
    (group,) = sent(dump).groups
    assert (group.has_status, group.last_enqueued, group.last_started) == (True, LARGEST_COUNT, -1)


@pytest.mark.parametrize("field", ["record_id", "collective_seq_id", "p2p_seq_id", "timeout_ms"])
def test_a_call_whose_number_is_out_of_range_costs_the_dump_and_nothing_else(field: str) -> None:
    assert sent(dump_of(1, **{field: LARGEST_COUNT})).calls
    with pytest.raises(ValueError, match="a number that is out of range"):
        shortened(dump_of(1, **{field: LARGEST_COUNT + 1}))
