"""The recordings themselves: complete, readable, and with expectations that their own files support."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.analyze.recordings import EVIDENCE, FOLDER, KINDS, Recording, cases, recordings

ALL = {recording.name: recording for recording in recordings()}
WITH_DOCUMENTS = {name: recording for name, recording in ALL.items() if recording.documents}

# Kinds that blame nobody: the evidence shows no rank's fault, or no fault at all.
NOBODY = {"gpu_or_network", "no_hang", "not_recorded", "program", "unknown", "mismatched_call", "opposite_order"}
TWO_SIDES = {"mismatched_call", "opposite_order"}

ENTRY_KEYS = {"collective_seq_id", "is_p2p", "p2p_seq_id", "pg_id", "process_group", "profiling_name"}
ENTRY_KEYS |= {"record_id", "retired", "state"}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def members(text: str) -> list[int]:
    return list(json.loads(text))


def test_there_are_cases_of_each_kind_that_the_public_record_holds() -> None:
    assert len(ALL) >= 50 and len(WITH_DOCUMENTS) >= 30
    kinds = {recording.expectation.kind for recording in WITH_DOCUMENTS.values()}
    # The one publication that pointed to the order of the program's calls turned out to be about the network.
    assert kinds == KINDS - {"program"}
    assert [name for name, _, _ in cases()] == list(WITH_DOCUMENTS)


def of(recordings: dict[str, Recording]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("recording", recordings.values(), ids=recordings)


@of(ALL)
def test_the_case_is_complete(recording: Recording) -> None:
    expectation = recording.expectation
    for text in (recording.source, recording.shows, recording.cause, expectation.why):
        assert text.strip() and text.isprintable()
    assert recording.source.startswith(("https://", "a public report"))
    assert recording.evidence in EVIDENCE
    assert recording.evidence == "recorder" or recording.derived
    assert expectation.kinds <= KINDS and expectation.kind not in expectation.also
    known = {"case.toml", "stacks", "logs", *(path.name for path in recording.documents.values())}
    assert {path.name for path in recording.folder.iterdir()} <= known
    assert recording.documents or recording.stacks or recording.logs
    for path in (*recording.stacks.values(), *recording.logs.values()):
        assert path.read_text().strip()
    assert f"`{recording.name}`" in (FOLDER / "README.md").read_text()


@of(ALL)
def test_the_expectation_blames_nobody_that_its_kind_does_not_allow(recording: Recording) -> None:
    expectation = recording.expectation
    assert bool(expectation.culprits) == (expectation.kind not in NOBODY)
    assert bool(expectation.undecided) == (expectation.kind in TWO_SIDES)
    sides = [rank for side in expectation.undecided for rank in side]
    assert len(sides) == len(set(sides)) and all(expectation.undecided) and len(expectation.undecided) != 1
    assert not expectation.stacks_decide or recording.stacks


@of(WITH_DOCUMENTS)
def test_each_document_has_the_keys_of_the_recorder(recording: Recording) -> None:
    for rank, path in recording.documents.items():
        document = read(path)
        assert document.keys() >= {"version", "pg_config", "entries"}
        for name, group in document["pg_config"].items():
            assert group["name"] == name and "desc" in group
            assert rank in members(group["ranks"])
        for number in document.get("pg_status", {}).values():
            assert number.keys() == {"last_enqueued_collective", "last_started_collective", "last_completed_collective"}
            assert all(int(value) >= -1 for value in number.values())
        assert [entry["record_id"] for entry in document["entries"]] == list(range(len(document["entries"])))
        for entry in document["entries"]:
            assert entry.keys() >= ENTRY_KEYS
            assert entry["state"] in {"scheduled", "started", "completed"}
            assert int(entry["collective_seq_id"]) >= 0
            assert entry["process_group"][0] in document["pg_config"]


@of(WITH_DOCUMENTS)
def test_the_expectation_speaks_of_calls_and_ranks_that_are_in_the_documents(recording: Recording) -> None:
    expectation = recording.expectation
    documents = {rank: read(path) for rank, path in recording.documents.items()}
    world = {rank for d in documents.values() for group in d["pg_config"].values() for rank in members(group["ranks"])}
    assert {*expectation.culprits, *(rank for side in expectation.undecided for rank in side)} <= world
    entries = [entry for document in documents.values() for entry in document["entries"]]
    if expectation.seq is not None:
        entries = [entry for entry in entries if int(entry["collective_seq_id"]) == expectation.seq]
        assert not all(entry["retired"] for entry in entries) or expectation.kind == "mismatched_call"
    if expectation.group:
        entries = [entry for entry in entries if expectation.group in entry["process_group"]]
    if expectation.op:
        entries = [entry for entry in entries if entry["profiling_name"].rpartition(":")[2] == expectation.op]
    assert entries
