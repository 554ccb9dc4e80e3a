"""Logs of old generations go, and those of the newest stay, whatever their numbers."""

import asyncio
import os
from pathlib import Path

import pytest

from holdfast_agent import log_limits
from holdfast_agent.log_limits import EVIDENCE, PROFILES, begin_logs, limit_evidence, remove_old_logs
from holdfast_base import log_files
from holdfast_base.log_files import limit_log
from holdfast_base.old_folders import FolderLimits, remove_old_folders
from holdfast_proto.run_files import GENERATIONS_LOGGED
from tests.support.coroutines import end, until
from tests.support.nodes import make_node


def made(logs: Path, generation: int, unix_s: float) -> Path:
    folder = logs / f"generation-{generation:04}"
    folder.mkdir(parents=True)
    (folder / "rank-00000.log").write_text("words\n")
    for path in (folder / "rank-00000.log", folder):
        os.utime(path, (unix_s, unix_s))
    return folder


def test_the_newest_generations_keep_their_logs_and_a_new_start_is_the_newest(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    earlier = [made(logs, 1000 + number, 10.0 + number) for number in range(GENERATIONS_LOGGED)]
    began = [made(logs, number, 5000.0 - number) for number in (1, 2)]
    reused = made(logs, 3, 1.0)
    (logs / "agent.log").write_text("")
    (tmp_path / "other").mkdir()
    (logs / "generation-0004").symlink_to(tmp_path / "other")
    (earlier[0] / "rank-00000.log").write_text("another run uses it\n")
    os.utime(earlier[0], (1.0, 1.0))
    begin_logs(reused)
    remove_old_logs(reused)
    assert set(logs.glob("generation-*")) == {earlier[0], *earlier[3:], *began, reused, logs / "generation-0004"}
    assert (reused / "rank-00000.log").exists()
    assert (logs / "agent.log").exists()


def test_a_log_that_is_too_large_is_emptied_and_a_rank_that_holds_it_open_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MOST_LOG_BYTES", 100)
    path = tmp_path / "rank-00000.log"
    assert not limit_log(path), "the rank has not begun to write"
    with path.open("ab", buffering=0) as rank:
        rank.write(b"a" * 100)
        assert not limit_log(path)
        rank.write(b"b" * 10)
        assert limit_log(path)
        rank.write(b"c")
        assert path.read_bytes() == b"c"
        rank.write(b"d" * 200)
        assert limit_log(path)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {
        path.name: b"",
        f"{path.name}.1": b"d" * 100,
    }


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MOST_LOG_BYTES", 1)
    (tmp_path / "other").write_text("words")
    (tmp_path / "rank-00000.log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="link"):
        limit_log(tmp_path / "rank-00000.log")
    assert (tmp_path / "other").read_text() == "words"


def folder_of(place: Path, name: str, unix_s: float, *files: str) -> None:
    folder = place / name
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"x" * 100)
    os.utime(folder, (unix_s, unix_s))


def test_the_newest_evidence_of_a_node_stays_and_so_does_what_is_not_the_agents(tmp_path: Path) -> None:
    files = ("rank-00001.stack.txt", "node-a.system.txt", "missing.txt", "suspicion/rank-00001.proc.txt")
    for number in range(6):
        folder_of(tmp_path, f"{number:04}-dead-rank", 100.0 + number, *files)
    folder_of(tmp_path, "a daemon's", 1.0, *files, "incident.json")
    folder_of(tmp_path, "a person's", 2.0, *files, "suspicion/notes.md")
    (tmp_path / "linked").symlink_to(tmp_path / "0000-dead-rank")
    limits = FolderLimits(folders=4, total_bytes=10**6, age_s=1e9, untouched=1)
    assert remove_old_folders(tmp_path, EVIDENCE, limits, 200.0) == ["0000-dead-rank", "0001-dead-rank"]
    assert len(list((tmp_path / "a daemon's").rglob("*.*"))) == 5
    assert len(list((tmp_path / "a person's").rglob("*.*"))) == 5
    by_size = FolderLimits(folders=4, total_bytes=900, age_s=1e9, untouched=1)
    assert remove_old_folders(tmp_path, EVIDENCE, by_size, 200.0) == ["0002-dead-rank", "0003-dead-rank"]
    by_age = FolderLimits(folders=4, total_bytes=900, age_s=1.0, untouched=1)
    assert remove_old_folders(tmp_path, EVIDENCE, by_age, 200.0) == ["0004-dead-rank"]
    assert remove_old_folders(tmp_path, EVIDENCE, by_age, 200.0) == []


def test_the_newest_profiles_stay(tmp_path: Path) -> None:
    for number in range(4):
        folder_of(tmp_path, f"request-{number}", 100.0 + number, "rank-00003.step-7.trace.json.gz")
    limits = FolderLimits(folders=2, total_bytes=10**6, age_s=1e9, untouched=1)
    assert remove_old_folders(tmp_path, PROFILES, limits, 1e9) == ["request-0", "request-1"]


async def test_the_agent_looks_at_the_evidence_and_the_profiles_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = FolderLimits(folders=1, total_bytes=10**6, age_s=1e9, untouched=1)
    for name, value in (("TIDY_EVERY_S", 0.01), ("EVIDENCE_LIMITS", few), ("PROFILE_LIMITS", few)):
        monkeypatch.setattr(log_limits, name, value)
    node = make_node(tmp_path)
    incidents, profiles = node.options.directory / "incidents", node.options.directory / "profiles"
    for number in range(3):
        folder_of(incidents / "run", f"{number}", 100.0 + number, "node-node0.system.txt")
        folder_of(incidents / "another run", f"{number}", 100.0 + number, "node-node0.system.txt")
        folder_of(profiles, f"{number}", 100.0 + number, "rank-00001.step-3.trace.json.gz")
    looking = asyncio.create_task(limit_evidence(node))
    left = {incidents / "run" / "2", profiles / "2", *(incidents / "another run" / f"{one}" for one in range(3))}
    places = (incidents / "run", incidents / "another run", profiles)
    await until(lambda: {folder for place in places for folder in place.iterdir()} == left, "what is old is gone")
    await end(looking)
    assert node.errors.unexpected["evidence"] == 0
