"""The text of each form of a verdict, word for word: what people read changes only on purpose."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from google.protobuf import text_format

from holdfast_core.texts.render import is_complete, render, write
from holdfast_proto.v1 import store_pb2 as store

GOLDEN = Path(__file__).with_name("golden.txt")
"""For each form its name, the verdict as text of protobuf, and below ``->`` the lines for people."""


def cases() -> Mapping[str, tuple[str, list[str]]]:
    found = {}
    for block in GOLDEN.read_text().strip().split("\n\n"):
        name, _, rest = block.partition("\n")
        verdict, _, lines = rest.partition("\n->\n")
        found[name.removeprefix("# ")] = verdict, lines.splitlines()
    return found


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_text_is_the_golden_one(name: str) -> None:
    text, lines = CASES[name]
    verdict = text_format.Parse(text, store.Verdict())
    assert is_complete(verdict)
    write(verdict)
    assert [verdict.message, *verdict.calls] == lines


def test_each_form_has_a_golden_text() -> None:
    verdicts = [text_format.Parse(text, store.Verdict()) for text, _ in CASES.values()]
    details = {verdict.WhichOneof("detail") for verdict in verdicts}
    assert details >= {field.name for field in store.Verdict.DESCRIPTOR.oneofs_by_name["detail"].fields}
    forms = {verdict.mismatch.form for verdict in verdicts}
    assert forms >= set(store.MismatchForm.values()) - {store.MISMATCH_FORM_UNSPECIFIED}
    links = {verdict.transport.form for verdict in verdicts}
    assert links >= set(store.TransportForm.values()) - {store.TRANSPORT_FORM_UNSPECIFIED}
    troubles = {verdict.checkpoint.trouble for verdict in verdicts}
    assert troubles >= set(store.CheckpointTrouble.values()) - {store.CHECKPOINT_TROUBLE_UNSPECIFIED}


def test_verdict_without_a_detail_keeps_the_text_that_an_older_version_gave_it() -> None:
    assert render(store.Verdict(message="rank 3 is stopped")) == "rank 3 is stopped"


def test_text_never_shows_a_step_before_the_first() -> None:
    for text, _ in CASES.values():
        verdict = text_format.Parse(text, store.Verdict())
        for held in verdict.hang.ranks:
            held.step = -1
        for end in verdict.death.ends:
            end.step = -1
        assert "step -1" not in render(verdict)
