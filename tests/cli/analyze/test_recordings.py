"""The recordings themselves: complete, readable, and with expectations that their own files support."""

import pytest

from tests.cli.analyze.recordings import EVIDENCE, FOLDER, KINDS, Recording, recordings

ALL = {recording.name: recording for recording in recordings()}

# Kinds that blame nobody: the evidence shows no rank's fault, or no fault at all.
NOBODY = {"gpu_or_network", "no_hang", "not_recorded", "program", "unknown", "mismatched_call", "opposite_order"}
TWO_SIDES = {"mismatched_call", "opposite_order"}


@pytest.mark.parametrize("recording", ALL.values(), ids=ALL)
def test_the_case_is_complete_and_blames_nobody_that_its_kind_does_not_allow(recording: Recording) -> None:
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

    assert bool(expectation.culprits) == (expectation.kind not in NOBODY)
    assert bool(expectation.undecided) == (expectation.kind in TWO_SIDES)
    sides = [rank for side in expectation.undecided for rank in side]
    assert len(sides) == len(set(sides)) and all(expectation.undecided) and len(expectation.undecided) != 1
    assert not expectation.stacks_decide or recording.stacks
