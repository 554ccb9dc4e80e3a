"""The files of an incident: listed and read in the terminal, in bounds, and safe for it."""

from pathlib import Path

import pytest

from holdfast_cli.top.incidents.evidence_screens import MOST_BYTES, evidence_text
from holdfast_daemon.incidents.evidence_files import evidence_files
from holdfast_proto import run_files
from tests.cli.top.conftest import Watch, watching_local
from tests.cli.top.scenes import hung
from tests.support.statuses import healthy, with_incident


async def test_the_evidence_of_an_incident_is_read_by_keys_alone(folder: Path) -> None:
    status = with_incident(healthy())
    evidence = run_files.incidents(folder / "llama", "llama") / "i-1"
    (evidence / "suspicion").mkdir(parents=True)
    (evidence / "kernel.txt").write_text("line one\n\x1b[2Jline [b]two\n")
    (evidence / "suspicion" / "node-local.system.txt").write_text("load 1.0\n")
    (evidence / "link.txt").symlink_to("/etc/passwd")
    async with watching_local(folder, status) as top:
        await top.press("i", "enter")
        await top.shows("f: files of evidence")
        await top.press("f")
        await top.shows("files of i-1: 2")
        assert "link.txt" not in top.screen_text
        await top.press("enter")
        await top.shows("line [b]two")
        assert "\x1b" not in top.screen_text
        await top.press("escape", "down", "enter")
        await top.shows("load 1.0")
        await top.press("escape", "escape", "escape", "escape")
        await top.shows("42 steps")


async def test_without_the_folder_a_line_says_where_the_files_are(watch: Watch, folder: Path) -> None:
    async with watch(hung()) as top:
        await top.press("i", "enter")
        await top.shows("f: files of evidence")
        await top.press("f")
        await top.shows("no files here")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"a\0b", "this is no text"),
        (b"x" * (MOST_BYTES + 1), "only the first 128 KiB are shown"),
        (b"\xff\xfe bytes", "bytes"),
    ],
)
def test_only_texts_are_shown_and_in_bounds(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "file").write_bytes(data)
    text = evidence_text(tmp_path, "file").plain
    assert said in text
    assert len(text) <= MOST_BYTES + 100


@pytest.mark.parametrize("name", ["none", "../secret", "suspicion/../../secret", "link", "", "folder", "/etc/hostname"])
def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    inner = tmp_path / "incident"
    (inner / "folder").mkdir(parents=True)
    (inner / "link").symlink_to(tmp_path / "secret")
    assert evidence_text(inner, name).plain.startswith("the file cannot be read: ")
    assert evidence_files(inner) == []
