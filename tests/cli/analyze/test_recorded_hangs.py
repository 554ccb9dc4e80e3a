"""``holdfast analyze`` on hangs that people published: who may be named is named, and nobody else."""

from pathlib import Path

import pytest

from holdfast_cli.analysis.diagnosis_report import diagnose_dumps, nothing_pending
from holdfast_cli.analysis.dump_folder import read_folder
from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence, Diagnosis
from tests.cli.analyze.recordings import Expectation, cases

# What the words of the recordings are in the words of the diagnosis.
SAME = {
    CauseKind.NOTHING_PENDING: {"no_hang", "not_recorded", "unknown"},
    CauseKind.MOVING: {"no_hang"},
    CauseKind.STUCK_DEVICE: {"gpu_or_network"},
    CauseKind.DEAD_RANK: {"missing_rank"},
}

# Cases in which the verdict names nobody wrongly, and falls short of what the files allow.
WEAK = {"torch-coalesced-uneven"}  # sizes may differ in some operations, so no mismatch is seen

CASES = {name: (folder, expectation) for name, folder, expectation in cases()}


def diagnosis_of(folder: Path) -> Diagnosis:
    return diagnose_dumps(read_folder(folder))


def first_cause(diagnosis: Diagnosis) -> Cause:
    return (diagnosis.causes or (nothing_pending(),))[0]


def is_right(diagnosis: Diagnosis, expectation: Expectation) -> bool:
    """Return whether the kind is one of the right ones, and all ranks are named that should be."""
    kind = first_cause(diagnosis).kind
    is_named = set(expectation.culprits) <= set(diagnosis.culprits)
    return is_named and bool(SAME.get(kind, {kind.value}) & expectation.kinds)


def may_be_named(cause: Cause, expectation: Expectation) -> set[int]:
    """Return the ranks that the files allow to name."""
    sides = expectation.undecided
    if cause.kind == CauseKind.OPPOSITE_ORDER:
        return {*expectation.culprits, *(rank for side in sides for rank in side)}
    # One rank against three or more is a hint: the majority can be wrong, and the verdict says how sure it is.
    is_hint = cause.kind == CauseKind.MISMATCHED_CALL and cause.confidence == Confidence.LOW
    most = max((len(side) for side in sides), default=0)
    odd = {side[0] for side in sides if len(side) == 1 and most >= 3} if is_hint else set()
    return {*expectation.culprits, *odd}


@pytest.mark.parametrize("name", CASES)
def test_nobody_is_named_who_may_not_be(name: str) -> None:
    folder, expectation = CASES[name]
    for cause in diagnosis_of(folder).causes:
        assert set(cause.ranks) <= may_be_named(cause, expectation), expectation.why


@pytest.mark.parametrize("name", [name for name in CASES if name not in WEAK])
def test_the_verdict_is_the_one_that_the_files_allow(name: str) -> None:
    folder, expectation = CASES[name]
    assert is_right(diagnosis_of(folder), expectation), expectation.why


@pytest.mark.parametrize("name", WEAK)
def test_a_weak_case_is_still_weak(name: str) -> None:
    folder, expectation = CASES[name]
    assert not is_right(diagnosis_of(folder), expectation), f"{name} is right now: take it off the list"


def test_the_page_has_the_number_of_recordings() -> None:
    """docs/analyze.md says how often the verdict is right."""
    page = (Path(__file__).parents[3] / "docs" / "analyze.md").read_text()
    kinds = [first_cause(diagnosis_of(folder)).kind for folder, _ in CASES.values()]
    nobody = sum(not diagnosis_of(folder).culprits for folder, _ in CASES.values())
    assert f"| recordings | {len(CASES)} |" in page and f"| verdict right | {len(CASES) - len(WEAK)} |" in page
    unnamed = kinds.count(CauseKind.UNKNOWN) + kinds.count(CauseKind.NOTHING_PENDING)
    assert f"| verdict `unknown` or `nothing_pending` | {unnamed} |" in page
    assert f"| ranks named | {len(CASES) - nobody} |" in page
    assert f"| falls short, and names nobody | {len(WEAK)} |" in page
