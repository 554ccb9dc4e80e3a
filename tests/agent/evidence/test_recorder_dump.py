"""Dumps of torch's Flight Recorder: all forms are read, and what makes no sense is left out and counted."""

import json
import pickle
from typing import Any

import pytest

from holdfast_agent.evidence.recorder_dump import HIGHEST_RANK, NoDumpError, from_document, read_dump
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1 import recorder_pb2 as recorder
from tests.support.recorder_documents import Document

GROUPS = {"0": (0, 1)}


def document(**changes: Any) -> dict[str, Any]:
    return Document(GROUPS).call().pending().document() | changes


def changed_entry(**changes: Any) -> recorder.RecorderDump:
    """Return the dump of two calls of which the second one's fields differ. None leaves a field out."""
    both = document()
    both["entries"][1] |= changes
    both["entries"][1] = {key: value for key, value in both["entries"][1].items() if value is not None}
    return from_document(both)


def as_pickle(written: dict[str, Any]) -> bytes:
    """Return a document as torch pickles it: the status has numbers, groups are tuples, unknown times are None."""
    numbers = {
        int(key): {name: int(value) for name, value in counters.items()}
        for key, counters in written["pg_status"].items()
    }
    entries = [
        entry | {"process_group": tuple(entry["process_group"]), "time_discovered_started_ns": None}
        for entry in written["entries"]
    ]
    return pickle.dumps(written | {"pg_status": numbers, "entries": entries}, protocol=2)


def test_the_pickle_and_the_json_of_one_recorder_are_one_dump() -> None:
    written = Document({"0": (0, 1), "7": (1, 0)}).call().batch(("send", 0, 1)).pending(group="7").document()
    dump = read_dump(json.dumps(written).encode())
    assert dump == read_dump(as_pickle(written))
    ops = ["nccl:all_reduce", "nccl:send 0->1", "nccl:coalesced", "nccl:all_reduce"]
    assert [call.op for call in dump.calls] == ops
    assert [list(members_of(group.member_runs)) for group in dump.groups] == [[0, 1], [1, 0]]
    assert dump.has_calls and not dump.has_wrapped and not dump.is_partial and not dump.has_unnamed_status


def test_a_call_has_all_that_a_diagnosis_needs() -> None:
    call = changed_entry(record_id=9, profiling_name="nccl:broadcast", input_sizes=[[2, 3], [4]]).calls[1]
    assert (call.order, call.group, call.seq, call.p2p_seq, call.p2p) == (9, 0, 2, 0, False)
    assert (call.op, call.input_sizes, call.dtypes) == ("nccl:broadcast", "[[2, 3], [4]]", "['Float']")
    assert (call.state, call.retired, call.timeout_ms) == (recorder.CALL_STATE_SCHEDULED, False, 600_000)


# Written by hand from torch's code: a batch of transfers is complete although its member looks pending, and the
# status has the batch's number.
BATCH_THEN_COLLECTIVE = (
    Document(GROUPS).call().batch(("send", 0, 1)).pending(elements=1024).status("0", 2, -1, 1).document()
)


def test_a_batch_leaves_its_member_scheduled_and_its_closing_entry_complete() -> None:
    dump = from_document(BATCH_THEN_COLLECTIVE)
    assert [(call.op, call.p2p, call.seq, call.p2p_seq, call.retired) for call in dump.calls] == [
        ("nccl:all_reduce", False, 1, 0, True),
        ("nccl:send 0->1", True, 1, 1, False),
        ("nccl:coalesced", False, 1, 1, True),
        ("nccl:all_reduce", False, 2, 1, False),
    ]
    assert (dump.groups[0].last_enqueued, dump.groups[0].last_started, dump.groups[0].last_completed) == (2, -1, 1)


@pytest.mark.parametrize("version", ["2.3", "2.5", "2.7", "2.9", "2.10", "2.99"])
def test_all_formats_two_are_read(version: str) -> None:
    dump = from_document(document(version=version))
    assert (dump.version, len(dump.calls), dump.bad_entries) == (version, 2, 0)


def test_old_documents_without_status_and_configuration_are_read() -> None:
    old = {
        "version": "1",
        "entries": [{"pg_id": 0, "seq_id": 4, "profiling_name": "nccl:all_reduce", "state": "scheduled"}],
    }
    with pytest.raises(NoDumpError, match=r"version 1, and only 2\.x can be read"):
        from_document(old)
    dump = from_document(old | {"version": "2.1"})
    assert [(call.seq, call.state) for call in dump.calls] == [(4, recorder.CALL_STATE_SCHEDULED)]
    assert dump.has_unnamed_status and dump.groups[0].name == "0" and not dump.groups[0].has_status


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b'"entries"',
        b"null",
        b"{}",
        b'{"version": "2.10"}',
        b'{"version": "2.10", "entries": 7}',
        b"\xff\xfe\x00",
        b"[" * 200_000,
        b'{"entries": ' * 100_000,
        pickle.dumps([1], protocol=2),
        b"\x80\x02}",
    ],
)
def test_other_data_are_no_dump(data: bytes) -> None:
    with pytest.raises(NoDumpError) as raised:
        read_dump(data)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"entries": [}', "it is no complete JSON: it is cut off or damaged at character 13"),
        (b'{"entries": "\xff"}', "it is no complete JSON: it is cut off or damaged at character 13"),
        (b'{"entries": [' + b"9" * 5000 + b"]}", "it has a number of too many digits"),
        (b'{"entries": ' * 100_000, "its lists are nested too deeply"),
        (b"\x80\x02}", "it is no complete pickle: it is cut off or damaged"),
        (b'{"version": 2.1, "entries": []}', 'its version is no text, as in "2.10"'),
        (b'{"version": true, "entries": []}', 'its version is no text, as in "2.10"'),
        (b'{"version": null, "entries": []}', 'its version is no text, as in "2.10"'),
    ],
)
def test_the_reason_why_something_is_no_dump_is_one_clear_line(data: bytes, reason: str) -> None:
    with pytest.raises(NoDumpError) as raised:
        read_dump(data)
    assert str(raised.value) == reason


def test_the_words_of_python_for_a_value_out_of_range_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: object) -> None:
        raise OverflowError("Python int too large to convert to C long")

    monkeypatch.setattr("holdfast_agent.evidence.recorder_dump._Reader.read", fail)
    with pytest.raises(NoDumpError, match=r"^it has a value that no Flight Recorder writes$"):
        read_dump(b'{"entries": []}')


def test_what_is_damaged_is_named_in_one_line_that_does_not_steer_a_terminal() -> None:
    harmful = b"\x80\x02cposix\x1b[2J\nsystem\n."
    with pytest.raises(NoDumpError, match=r"refers to posix\?\[2J\.system"):
        read_dump(harmful)
    with pytest.raises(NoDumpError, match=r"version 9\?x, and only"):
        from_document(document(version="9\nx"))
    name = "a\x1b[31m\nb"
    written = (
        Document({name: (0, 1)}).call(name, group=name, frames=[{"filename": "/x\r.py", "name": "\x07f"}]).document()
    )
    dump = from_document(written)
    assert dump.groups[0].name == "a?[31m?b" and dump.groups[0].has_status
    assert (dump.calls[0].op, dump.calls[0].frame) == ("nccl:a?[31m?b", "/x?.py:? ?f")


@pytest.mark.parametrize("key", ["entries", "pg_status", "pg_config"])
def test_one_of_the_three_parts_makes_a_dump(key: str) -> None:
    dump = from_document({key: document()[key]})
    assert (dump.version, bool(dump.calls), len(dump.groups)) == ("", key == "entries", 0 if key == "pg_status" else 1)


def test_a_status_whose_ids_are_neither_texts_nor_numbers_is_refused() -> None:
    with pytest.raises(NoDumpError, match="it has a value that no Flight Recorder writes"):
        read_dump(pickle.dumps(document(pg_status={1.5: {}}), protocol=2))


@pytest.mark.parametrize("version", ["3.0", "10.2"])
def test_another_format_is_refused(version: object) -> None:
    with pytest.raises(NoDumpError, match=r"only 2\.x can be read"):
        from_document(document(version=version))


@pytest.mark.parametrize(
    "changes",
    [
        {"profiling_name": None},
        {"collective_seq_id": None},
        {"collective_seq_id": True},
        {"collective_seq_id": -1},
        {"collective_seq_id": 1.5},
        {"collective_seq_id": float("nan")},
        {"collective_seq_id": 1 << 64},
        {"collective_seq_id": "many"},
        {"record_id": [1]},
        {"record_id": True},
        {"time_created_ns": 1 << 70},
        {"timeout_ms": -1},
    ],
)
def test_an_entry_without_sense_is_left_out_and_counted(changes: dict[str, Any]) -> None:
    dump = changed_entry(**changes)
    assert (len(dump.calls), dump.bad_entries) == (1, 1)


@pytest.mark.parametrize("entry", [None, 7, "call", [], {}])
def test_what_is_no_entry_is_left_out_and_counted(entry: object) -> None:
    dump = from_document(document() | {"entries": [*document()["entries"], entry]})
    assert (len(dump.calls), dump.bad_entries) == (2, 1)


def test_a_number_too_long_to_convert_costs_one_entry_at_most() -> None:
    written = json.dumps(document()).replace('"collective_seq_id": 2', f'"collective_seq_id": "{"9" * 10_000}"')
    dump = read_dump(written.encode())
    assert (len(dump.calls), dump.bad_entries) == (1, 1)


@pytest.mark.parametrize(("field", "value"), [("retired", 1), ("retired", "true"), ("is_p2p", 1), ("is_p2p", "yes")])
def test_only_true_is_true(field: str, value: object) -> None:
    call = changed_entry(**{field: value}).calls[1]
    assert not call.retired and not call.p2p


@pytest.mark.parametrize(("state", "is_over"), [("scheduled", False), ("started", False), ("completed", True)])
def test_a_call_that_its_watchdog_has_given_up_is_not_over(state: str, *, is_over: bool) -> None:
    assert changed_entry(state=state, retired=True).calls[1].retired == is_over


@pytest.mark.parametrize("state", ["running", 7, None])
def test_an_unknown_state_is_not_known(state: object) -> None:
    assert changed_entry(state=state).calls[1].state == recorder.CALL_STATE_UNSPECIFIED


@pytest.mark.parametrize("backend", ["gloo", "c10d", "mpi", "ucc"])
def test_states_and_counters_of_other_backends_are_not_believed(backend: str) -> None:
    """The generic recorder writes "scheduled" forever, and counts calls that it does not show."""
    dump = from_document(Document(GROUPS, backend=backend).call(state="scheduled", retired=True).document())
    assert [(call.state, call.retired) for call in dump.calls] == [(recorder.CALL_STATE_UNSPECIFIED, True)]
    assert not dump.groups[0].has_status and dump.has_unnamed_status


@pytest.mark.parametrize(("ranks", "members"), [("[3, 1]", [3, 1]), ([3, 1], [3, 1]), ((3, 1), [3, 1]), ("[]", [])])
def test_members_are_a_text_or_a_list_in_the_order_of_the_group(ranks: object, members: list[int]) -> None:
    dump = from_document(document(pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}))
    assert (list(members_of(dump.groups[0].member_runs)), dump.bad_entries) == (members, 0)


def test_a_group_is_named_by_its_key_if_it_has_no_name() -> None:
    assert [group.name for group in from_document(document(pg_config={"9": {"ranks": "[0]"}})).groups] == ["9", "0"]


@pytest.mark.parametrize(
    ("named", "expected"),
    [(["tp"], ("tp", "")), (["tp", "mesh_tp"], ("tp", "mesh_tp")), ((8, "mesh_tp", 1), ("8", "mesh_tp"))],
)
def test_an_entry_names_its_group_and_may_describe_it(named: object, expected: tuple[str, str]) -> None:
    dump = changed_entry(process_group=named, pg_id=1)
    assert [(group.name, group.description) for group in dump.groups] == [("0", "default_pg"), expected]


def test_the_highest_rank_is_one_and_the_next_is_none() -> None:
    for rank, members in ((HIGHEST_RANK, [HIGHEST_RANK]), (HIGHEST_RANK + 1, [])):
        dump = from_document(document(pg_config={"0": {"name": "0", "desc": "", "ranks": f"[{rank}]"}}))
        assert list(members_of(dump.groups[0].member_runs)) == members


def test_more_groups_than_a_rank_can_have_are_left_out_and_counted() -> None:
    config = {str(name): {"name": str(name), "desc": "", "ranks": "[0]"} for name in range(4100)}
    dump = from_document(document(pg_config=config))
    assert (len(dump.groups), dump.bad_entries) == (4096, 4)


@pytest.mark.parametrize("ranks", [None, 7, "[1, 1]", [1, 1], f"[{1 << 32}]", [True], [-1], ["x"]])
def test_members_without_sense_are_left_out_and_counted(ranks: object) -> None:
    dump = from_document(document(pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}))
    assert (list(members_of(dump.groups[0].member_runs)), dump.bad_entries) == ([], 1)


@pytest.mark.parametrize("counters", [None, 7, {}, {"last_enqueued_collective": 1}, {"last_enqueued_collective": "x"}])
def test_counters_without_sense_are_left_out_and_counted(counters: object) -> None:
    dump = from_document(document(pg_status={"0": counters}))
    assert not dump.groups[0].has_status and dump.bad_entries == 1


def test_the_status_names_groups_by_the_ids_of_the_entries() -> None:
    """``pg_id`` counts the groups of a process, so group 7 may have id 1 here and id 5 on another rank."""
    dump = from_document(Document({"0": (0, 1), "7": (0, 1)}).call().call(group="7").pending(group="7").document())
    shown = [(group.name, group.last_enqueued, group.last_completed) for group in dump.groups]
    assert shown == [("0", 1, 1), ("7", 2, 1)]


def test_an_id_that_no_entry_explains_stays_unnamed() -> None:
    numbers = {"last_enqueued_collective": 8, "last_started_collective": -1, "last_completed_collective": 7}
    dump = from_document(document(pg_status={"5": numbers}))
    assert dump.has_unnamed_status and not any(group.has_status for group in dump.groups)
    assert dump.bad_entries == 0


NUMBERS = {"last_enqueued_collective": 8, "last_completed_collective": 7}


@pytest.mark.parametrize("key", ["0", 0])
def test_the_first_id_is_the_world_if_no_entry_says_otherwise(key: object) -> None:
    """The world's entries have left the ring, which shows those of group 7 alone, by its id 1."""
    written = Document({"0": (0, 1), "7": (0, 1)}, first_record=90).call(group="7", seq=5).document()
    dump = from_document(written | {"pg_status": {key: NUMBERS}})
    shown = [(group.name, group.has_status, group.last_enqueued, group.last_started) for group in dump.groups]
    assert shown == [("0", True, 8, -1), ("7", False, 0, 0)]


@pytest.mark.parametrize(
    ("calls_of", "is_world_known", "enqueued"),
    [
        ({"7": 0}, True, {"0": None, "7": 8}),  # id 0 is group 7
        ({"7": 1, "0": 3}, True, {"0": None, "7": None}),  # id 3 is the world, and nothing shows what id 0 is
        ({"7": 1}, False, {"7": None}),  # there is no world
    ],
)
def test_the_first_id_is_not_the_world_if_an_entry_says_so(
    calls_of: dict[str, int], is_world_known: bool, enqueued: dict[str, int | None]
) -> None:
    groups = {"0": (0, 1), "7": (0, 1)} if is_world_known else {"7": (0, 1)}
    written = Document(groups)
    for name in calls_of:
        written.call(group=name)
    document = written.document() | {"pg_status": {"0": NUMBERS}}
    for entry, number in zip(document["entries"], calls_of.values(), strict=True):
        entry["pg_id"] = number
    dump = from_document(document)
    assert {group.name: group.last_enqueued if group.has_status else None for group in dump.groups} == enqueued
    assert dump.bad_entries == 0


def test_a_status_alone_names_its_groups_by_their_order_if_all_are_there() -> None:
    names = [str(3 * number) for number in range(12)]  # ids 10 and 11 come last, and not after 1
    written = Document(dict.fromkeys(names, (0, 1)))
    for number, name in enumerate(names):
        written.call(group=name, seq=number + 1)
    dump = from_document(written.document(entries=False))
    assert not dump.has_calls
    assert {group.name: group.last_enqueued for group in dump.groups} == {
        name: number + 1 for number, name in enumerate(names)
    }


def test_a_status_alone_that_lacks_a_group_stays_unnamed() -> None:
    written = Document({"0": (0, 1), "3": (0, 1), "12": (0, 1)}).call().call(group="3").document(entries=False)
    del written["pg_status"]["1"]
    dump = from_document(written)
    assert {group.name: group.has_status for group in dump.groups} == {"0": True, "3": False, "12": False}
    assert dump.has_unnamed_status and dump.bad_entries == 0


def test_a_status_alone_stays_unnamed_if_a_name_is_no_number() -> None:
    written = Document({"0": (0, 1), "mesh": (0, 1)}).call(seq=4).call(group="mesh", seq=9)
    dump = from_document(written.document(entries=False))
    shown = [(group.name, group.has_status, group.last_enqueued) for group in dump.groups]
    assert shown == [("0", True, 4), ("mesh", False, 0)]
    assert dump.has_unnamed_status


def test_a_full_ring_and_one_with_holes_are_told_apart() -> None:
    for lost in (1, 40):
        full = from_document(Document(GROUPS, first_record=lost).call(seq=lost).call().document())
        assert full.has_wrapped and not full.is_partial
    holes = Document(GROUPS).call().call().call().pending().document()
    del holes["entries"][1]
    partial = from_document(holes)
    assert partial.is_partial and not partial.has_wrapped


def test_entries_are_sorted_by_the_order_of_the_calls() -> None:
    written = document()
    written["entries"].reverse()
    assert [call.seq for call in from_document(written).calls] == [1, 2]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (
            [
                {"name": "all_reduce", "filename": "/venv/lib/python3.12/site-packages/torch/x.py", "line": 3},
                {"name": "step", "filename": "/home/me/train.py", "line": 41},
                {"name": "main", "filename": "/home/me/main.py", "line": 2},
            ],
            "/home/me/train.py:41 step",
        ),
        ([{"name": "f", "filename": "??", "line": 0}], ""),
        ([7, {"filename": "/home/me/train.py"}], "/home/me/train.py:? "),
        ([{"name": "f"}, {"filename": "/home/me/train.py", "line": 7, "name": "g"}], "/home/me/train.py:7 g"),
        ("text", ""),
        (None, ""),
    ],
)
def test_the_frame_is_the_innermost_of_the_users_code(frames: object, expected: str) -> None:
    assert changed_entry(frames=frames).calls[1].frame == expected


def test_long_texts_are_cut() -> None:
    long = "x" * 100_000
    dump = changed_entry(
        profiling_name=long,
        input_sizes=[long, long],
        process_group=[long, long],
        frames=[{"filename": long, "name": long}],
    )
    group, call = dump.groups[1], dump.calls[1]
    assert [len(text) for text in (call.op, call.input_sizes, call.frame, group.name, group.description)] == [4096] * 5
    assert len(from_document(document(version=f"2.{long}")).version) == 16


def nested(depth: int) -> list[object]:
    """Return lists in lists, of which each holds the same one ten times: few bytes that spell very many."""
    inner: list[object] = [1]
    for _ in range(depth):
        inner = [inner] * 10
    return inner


@pytest.mark.parametrize("field", ["input_sizes", "profiling_name", "process_group", "record_id"])
def test_an_entry_that_would_spell_too_much_is_left_out(field: str) -> None:
    written = document()
    written["entries"][1][field] = nested(12)
    data = pickle.dumps(written, protocol=2)
    assert len(data) < 10_000
    dump = read_dump(data)
    assert (len(dump.calls), dump.bad_entries) == (1, 1)


def test_frames_that_would_spell_too_much_are_no_frames() -> None:
    written = document()
    written["entries"][1]["frames"] = nested(12)
    dump = read_dump(pickle.dumps(written, protocol=2))
    assert ([call.frame for call in dump.calls], dump.bad_entries) == (["", ""], 0)


@pytest.mark.parametrize(
    "change",
    [
        {"version": nested(12)},
        {"pg_status": {"9" * 5000: {}}},
        {"pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 4294967295]"}}},
        {"pg_config": {"0": {"name": nested(12), "desc": "", "ranks": "[0]"}}},
    ],
)
def test_a_damaged_dump_is_refused_or_read_in_part(change: dict[str, object]) -> None:
    data = pickle.dumps(document() | change, protocol=2)
    try:
        dump = read_dump(data)
    except NoDumpError as error:
        assert len(str(error)) < 300
    else:
        assert all(rank <= HIGHEST_RANK for group in dump.groups for rank in members_of(group.member_runs))


@pytest.mark.parametrize(("sizes", "text"), [([[2, 3], []], "[[2, 3], []]"), ([[[1]], ["a"]], "[[[1]], ['a']]")])
def test_sizes_may_be_lists_in_lists_in_a_list(sizes: object, text: str) -> None:
    assert changed_entry(input_sizes=sizes).calls[1].input_sizes == text
    assert changed_entry(input_sizes=[[[[1]]]]).bad_entries == 1


def test_half_a_letter_in_json_does_no_harm() -> None:
    assert read_dump(b'{"version": "2.\\ud800", "entries": []}').version == "2.?"


def test_a_dump_of_torchcomms_is_refused_and_one_with_another_description_is_read() -> None:
    """Its numbers count the calls of all groups, and its ranks count within the group."""
    made = Document({"0": (0, 1), "a": (2, 3)}, backend="ncclx").call().call(group="a")
    with pytest.raises(NoDumpError, match="it is of TorchComms' recorder"):
        from_document(made.of_torchcomms())
    assert len(from_document(made.document()).calls) == 2


@pytest.mark.parametrize("value", ["{}", "[]", "1", '{"a":1}'])
def test_a_json_of_too_many_objects_is_refused_before_it_is_read(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = f'{{"entries":[{",".join([value] * 10_000)}]}}'.encode()
    monkeypatch.setattr("holdfast_agent.evidence.plain_pickle.MOST_MEMORY_BYTES", 500_000)
    with pytest.raises(NoDumpError, match="describes objects of more than"):
        read_dump(data)


def test_a_pickle_that_repeats_one_call_a_thousand_times_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = document(entries=[document()["entries"][0] | {"profiling_name": "nccl:" + "x" * 4000}] * 1000)
    monkeypatch.setattr("holdfast_agent.evidence.recorder_dump.LARGEST_DUMP_BYTES", 1 << 20)
    with pytest.raises(NoDumpError, match="its calls are larger than 1 MiB"):
        read_dump(pickle.dumps(repeated, protocol=2))
