"""Old evidence is removed within its limits, and nothing else is."""

import os
import threading
from pathlib import Path

import pytest

from holdfast_daemon.incidents import archive
from holdfast_daemon.incidents.evidence_removal import REMOVED, EvidenceLimits, remove_old_evidence
from holdfast_daemon.incidents.incident_folder import STORY, parse_story, write_story
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store

NOW = 1_800_000_000.0
WIDE = EvidenceLimits(folders=100, total_bytes=10**6, age_s=1000.0, untouched=1)


@pytest.fixture
def incidents(tmp_path: Path) -> Path:
    """Five incidents, one a second, the newest a second old. Each has 300 bytes of evidence."""
    for number in range(1, 6):
        make(tmp_path / "incidents", number)
    return tmp_path / "incidents"


def make(root: Path, number: int, state: "store.IncidentState" = store.INCIDENT_STATE_RECOVERED) -> Path:
    folder = root / f"{number:04}-dead-rank"
    write_story(folder, store.Incident(id=folder.name, state=state))
    (folder / "suspicion").mkdir(exist_ok=True)
    for name, size in (("core.json", 100), ("rank-00001.stack.txt", 100), ("suspicion/rank-00001.stack.txt", 100)):
        (folder / name).write_bytes(b"x" * size)
    os.utime(folder / STORY, (NOW - 6 + number, NOW - 6 + number))
    return folder


def remove(root: Path, limits: EvidenceLimits, now: float = NOW) -> tuple[list[int], list[str]]:
    """Return the numbers of the incidents whose evidence was removed, and the folders that failed."""
    failed: list[str] = []
    removed = remove_old_evidence(root, now, lambda folder, _: failed.append(folder.name), limits)
    return [int(name[:4]) for name in removed], failed


@pytest.mark.parametrize(
    ("limits", "now", "removed"),
    [
        (WIDE, NOW, []),
        (EvidenceLimits(folders=3, untouched=1), NOW, [1, 2]),
        (EvidenceLimits(total_bytes=1000, untouched=1), NOW, [1, 2]),
        (EvidenceLimits(age_s=3.5, untouched=1), NOW, [1, 2]),
        (EvidenceLimits(folders=0, total_bytes=0, age_s=0.0, untouched=2), NOW, [1, 2, 3]),
        (EvidenceLimits(), NOW + 10**8, []),
    ],
    ids=["nothing", "count", "size", "age", "the newest stay", "ten stay however old"],
)
def test_the_oldest_evidence_goes_first(
    incidents: Path, limits: EvidenceLimits, now: float, removed: list[int]
) -> None:
    assert remove(incidents, limits, now) == (removed, [])
    assert remove(incidents, limits, now) == ([], []), "what is gone is not counted again"


def test_the_story_stays_and_a_file_says_what_was_removed(incidents: Path) -> None:
    remove(incidents, EvidenceLimits(folders=4, untouched=1))
    folder = incidents / "0001-dead-rank"
    assert sorted(path.name for path in folder.iterdir()) == ["README.txt", STORY, REMOVED]
    assert parse_story((folder / STORY).read_bytes()).id == folder.name
    assert "removed 3 files, 300 bytes" in (folder / REMOVED).read_text()


def test_of_still_older_incidents_the_stories_go_too_and_what_people_put_there_stays(incidents: Path) -> None:
    (incidents / "0001-dead-rank" / "notes.md").write_text("seen before")
    make(incidents, 2, store.INCIDENT_STATE_OPEN)
    assert remove(incidents, EvidenceLimits(folders=2, stories=2, untouched=1)) == ([1, 3], [])
    left = {path.name: sorted(one.name for one in path.iterdir()) for path in incidents.iterdir()}
    assert sorted(left) == ["0001-dead-rank", "0002-dead-rank", "0004-dead-rank", "0005-dead-rank"]
    assert left["0001-dead-rank"] == ["README.txt", "incident.json", "notes.md", "removed.txt"]
    assert (STORY in left["0002-dead-rank"], "core.json" in left["0002-dead-rank"]) == (True, True)


def test_an_open_incident_and_a_folder_without_a_story_are_not_touched(incidents: Path) -> None:
    make(incidents, 1, store.INCIDENT_STATE_OPEN)
    make(incidents, 2, store.INCIDENT_STATE_STANDSTILL)
    (incidents / "0003-dead-rank" / STORY).write_text("damaged")
    (incidents / "0004-dead-rank" / STORY).unlink()
    before = sorted(incidents.rglob("*"))
    assert remove(incidents, EvidenceLimits(folders=0, untouched=1), NOW + 10) == ([], [])
    assert sorted(incidents.rglob("*")) == before


def test_no_link_is_followed(incidents: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make(outside, 7)
    before = sorted(outside.rglob("*"))
    folder = incidents / "0001-dead-rank"
    (folder / "node-link.txt").symlink_to(outside)
    (folder / "rank-00002.link").symlink_to(outside / "0007-dead-rank" / "core.json")
    (incidents / "0000-link").symlink_to(outside / "0007-dead-rank")
    assert remove(incidents, EvidenceLimits(folders=0, untouched=4)) == ([1], [])
    assert (sorted(outside.rglob("*")), (folder / "node-link.txt").is_symlink()) == (before, False)
    (tmp_path / "link").symlink_to(incidents)
    with pytest.raises(OSError, match="link"):
        remove(tmp_path / "link", EvidenceLimits(folders=0, untouched=1))


def test_what_people_have_put_there_stays(incidents: Path) -> None:
    folder = incidents / "0001-dead-rank"
    (folder / "notes").mkdir()
    theirs = [folder / "postmortem.md", folder / "notes" / "rank-00001.txt"]
    for path in theirs:
        path.write_text("mine")
    assert remove(incidents, EvidenceLimits(folders=0, untouched=4)) == ([1], [])
    assert all(path.exists() for path in theirs)


def test_a_folder_that_refuses_does_not_keep_the_others(incidents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, first = os.unlink, (incidents / "0001-dead-rank").stat().st_ino

    def refuse(name: str, *, dir_fd: int) -> None:
        if os.fstat(dir_fd).st_ino == first:
            raise OSError(30, "Read-only file system")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    assert remove(incidents, EvidenceLimits(folders=3, untouched=1)) == ([2], ["0001-dead-rank"])
    assert not (incidents / "0001-dead-rank" / REMOVED).exists()


def test_the_archive_removes_once_in_a_while_and_counts_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[Path] = []

    def fail(directory: Path, *_: object) -> None:
        looks.append(directory)
        raise OSError("read-only")

    monkeypatch.setattr(archive, "remove_old_evidence", fail)
    kept = archive.IncidentArchive(tmp_path, "r")
    for number in range(3):
        kept.keep(store.Incident(id=f"{number:04}-dead-rank"))
    for thread in threading.enumerate():
        if thread.name == "evidence-removal":
            thread.join()
    assert (looks, kept.failures_total, len(caplog.records)) == ([run_files.incidents(tmp_path, "r")], 1, 1)
