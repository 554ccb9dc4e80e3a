"""The judge: verdicts that are right, missed, lucky or wrong, and cases with enough variety to try a detector on."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.simulation.nccl.cases import Case, cases, one_case
from tests.simulation.nccl.documents import Document
from tests.simulation.nccl.evidence import Truth, sinks
from tests.simulation.nccl.faults import FAULTS
from tests.simulation.nccl.judge import Outcome, judge, score


@dataclass(frozen=True)
class Said:
    kind: str
    culprits: Sequence[int]


CASE = one_case("any", ["busy"], 4)


def entries_of(document: Document | None) -> list[dict[str, Any]]:
    return list((document or {}).get("entries", ()))


def call_of(entry: dict[str, Any]) -> tuple[str, int]:
    """Return the group and the number of a collective."""
    return entry["process_group"][0], entry["collective_seq_id"]


def outcome(truth: Truth, *named: int) -> Outcome:
    return judge(replace(CASE, truth=truth), Said("late", named))


def truth(culprits: set[int], *, decidable: bool = True, more: set[int] | None = None, both: bool = False) -> Truth:
    may_name = frozenset(culprits | (more or set()))
    return Truth("busy", frozenset(culprits), decidable, may_name, frozenset(culprits if decidable else ()), both)


def test_the_culprit_is_right_and_anybody_else_is_wrong() -> None:
    assert outcome(truth({2}), 2) is Outcome.RIGHT
    assert outcome(truth({2}), 1) is Outcome.WRONG
    assert outcome(truth({2}), 1, 2) is Outcome.WRONG
    assert outcome(truth({2})) is Outcome.MISSED


def test_one_of_two_culprits_is_a_part() -> None:
    assert outcome(truth({1, 2}), 1) is Outcome.PARTLY
    assert outcome(truth({1, 2}), 2, 1) is Outcome.RIGHT
    assert outcome(truth({1, 2}), 2, 3) is Outcome.WRONG


def test_a_culprit_behind_another_one_need_not_be_named() -> None:
    first = replace(truth({1, 2}), shown=frozenset({1}))
    assert outcome(first, 1) is outcome(first, 1, 2) is Outcome.RIGHT
    assert outcome(first, 2) is Outcome.PARTLY


def test_of_two_sides_both_must_be_named() -> None:
    mismatch = truth({2}, more={0, 1, 3}, both=True)
    assert outcome(mismatch, 0, 1, 2, 3) is Outcome.RIGHT
    assert outcome(mismatch, 2) is Outcome.PARTLY
    assert outcome(mismatch, 0, 1, 3) is Outcome.WRONG


def test_in_a_circle_the_culprit_alone_is_right_too() -> None:
    circle = truth({2}, more={1})
    assert outcome(circle, 2) is outcome(circle, 1, 2) is Outcome.RIGHT
    assert outcome(circle, 1) is Outcome.WRONG


def test_what_cannot_be_known_must_not_be_said() -> None:
    assert outcome(truth({2}, decidable=False)) is Outcome.RIGHT
    assert outcome(truth({2}, decidable=False), 2) is Outcome.LUCKY
    assert outcome(truth({2}, decidable=False), 1) is Outcome.WRONG
    nobody = Truth("network", frozenset(), False, frozenset(), frozenset())
    assert outcome(nobody) is Outcome.RIGHT
    assert outcome(nobody, 0) is Outcome.WRONG
    hidden = Truth("kernel_hang", frozenset({2}), False, frozenset(), frozenset())
    assert outcome(hidden, 2) is Outcome.WRONG


def test_a_perfect_a_silent_and_a_guessing_detector_are_told_apart() -> None:
    drawn = list(cases(11, 60, most_ranks=8))

    def perfect(case: Case) -> Said:
        return Said("known", sorted(case.truth.may_name) if case.truth.decidable else ())

    chance = random.Random(0)
    scores = [
        score(perfect, drawn),
        score(lambda _: Said("nothing", ()), drawn),
        score(lambda case: Said("guess", [chance.randrange(case.world_size)]), drawn),
    ]
    assert scores[0].total(Outcome.RIGHT) == len(drawn)
    assert scores[1].total(Outcome.MISSED) == sum(case.truth.decidable for case in drawn) > 0
    assert scores[1].total(Outcome.WRONG) == 0
    assert scores[2].total(Outcome.WRONG) > len(drawn) / 2
    assert len(scores[2].wrong) == 20
    table = scores[0].table()
    assert all(kind in table for kind in {case.truth.kind for case in drawn})
    assert f"known {scores[0].words['healthy']['known']}" in table


@pytest.mark.parametrize(
    ("waits", "ends"),
    [
        ({}, set()),
        ({0: {1}, 2: {1}}, {1}),
        ({0: {1}, 1: {2}, 3: {1}}, {2}),
        ({0: {1}, 1: {0}, 2: {0}}, {0, 1}),
        ({0: {1}, 1: {0, 2}}, {2}),
        ({0: {1}, 2: {3}}, {1, 3}),
    ],
)
def test_chains_end_at_sinks(waits: dict[int, set[int]], ends: set[int]) -> None:
    assert sinks(waits) == ends


@pytest.mark.parametrize("kind", ["busy", "data_loader", "teardown"])
def test_a_rank_that_is_said_to_be_shown_is_late_in_the_documents(kind: str) -> None:
    """Whole dumps without messages show it in numbers: a call of the culprit is missing that another one waits in."""
    tried = 0
    for case in cases(8, 120, [kind], 8):
        truth, printed = case.truth, case.documents
        entries = {rank: entries_of(found) for rank, found in printed.items()}
        is_whole = all(held and held[0]["record_id"] == 0 for held in entries.values())
        if not (is_whole and truth.decidable and case.layout in ("ddp", "fsdp", "hsdp", "tp", "ep")) or case.stacks:
            continue
        (culprit,) = truth.culprits
        tried += 1
        newest = dict(map(call_of, entries.pop(culprit)))
        members = {
            name: group["ranks"] for found in printed.values() for name, group in (found or {})["pg_config"].items()
        }
        pending = [call_of(entry) for held in entries.values() for entry in held if entry["state"] != "completed"]
        assert any(
            number > newest.get(group, 0) and culprit in json.loads(members.get(group, "[]"))
            for group, number in pending
        )
    assert tried > 5


def test_cases_are_varied() -> None:
    seen: Counter[str] = Counter()
    for case in cases(4, 250, most_ranks=8):
        seen[case.truth.kind] += 1
        printed = [found for found in case.documents.values() if found]
        seen["no dump"] += len(printed) < case.world_size
        seen["status only"] += any("entries" not in found for found in printed)
        seen["stacks"] += bool(case.stacks)
        seen["dead"] += bool(case.dead)
        seen["decidable"] += case.truth.decidable
        seen["changed"] += case.documents != case.earlier
        seen["started"] += "started" in str(printed)
        assert set(case.documents) == set(case.earlier) == set(range(case.world_size))
        assert all(case.documents[rank] is None for rank in case.dead)
    missing = {*FAULTS, "no dump", "status only", "stacks", "dead", "decidable", "changed", "started"} - set(seen)
    assert not missing
    assert 80 < seen["decidable"] < 220


def test_an_unfinished_call_is_decidable_if_all_others_show_its_end() -> None:
    """A reader of the dumps finds such a call, and the truth agrees."""
    tried = 0
    for case in cases(8, 60, ["unfinished_call"], 8):
        (culprit,) = case.truth.culprits
        printed = [entry for found in case.documents.values() for entry in entries_of(found)]
        ended = Counter(call_of(entry) for entry in printed if entry["retired"])
        held = [call_of(entry) for entry in entries_of(case.documents[culprit]) if entry["state"] != "completed"]
        if case.layout in ("ddp", "fsdp") and held and ended[held[0]] == case.world_size - 1:
            assert case.truth.decidable
            assert case.truth.shown == {culprit}
            tried += 1
    assert tried


def test_several_faults_have_several_culprits() -> None:
    counts = {len(case.truth.culprits) for case in cases(8, 30, ["several"], 8)}
    assert counts == {2, 3}


def test_many_dumps_hold_pending_calls_only() -> None:
    drawn = [case.documents.values() for case in cases(8, 100, ["busy"], 8)]
    drawn = [documents for documents in drawn if any("entries" in (found or {}) for found in documents)]
    pending = [each for each in drawn if not any(entry["retired"] for found in each for entry in entries_of(found))]
    assert 0.15 < len(pending) / len(drawn) < 0.6
    assert any(found and found["pg_status"] and "entries" not in found for each in pending for found in each)


@pytest.mark.parametrize("kind", ["dead", "dead_node", "exited"])
def test_a_known_death_is_always_shown(kind: str) -> None:
    for case in cases(9, 12, [kind], 8):
        assert case.truth.decidable
        assert case.dead == case.truth.culprits
        assert all(case.documents[rank] is None for rank in case.dead)


def has_moved(case: Case) -> bool:
    """Return whether its dumps differ in more than the times at which a dump itself looked."""
    looked = {"time_discovered_started_ns": 0, "time_discovered_completed_ns": 0}
    kept = [
        {
            rank: found and {**found, "entries": [entry | looked for entry in found["entries"]]}
            for rank, found in documents.items()
            if found is None or "entries" in found
        }
        for documents in (case.earlier, case.documents)
    ]
    return kept[0] != kept[1]


def test_two_samples_tell_a_hang_from_a_run() -> None:
    assert not any(has_moved(case) for case in cases(6, 60, most_ranks=8) if case.truth.kind != "healthy")
    moved = [case for case in cases(6, 30, ["healthy"], 8) if any(map(entries_of, case.documents.values()))]
    assert all(map(has_moved, moved))
    assert len(moved) > 20
