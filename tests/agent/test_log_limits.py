"""Logs of old generations go, and those of the newest stay, whatever their numbers."""

import os
from pathlib import Path

import pytest

from holdfast_agent import log_limits
from holdfast_agent.log_limits import begin_logs, limit_log, remove_old_logs
from holdfast_proto.run_files import GENERATIONS_LOGGED


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
    monkeypatch.setattr(log_limits, "MOST_LOG_BYTES", 100)
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
    monkeypatch.setattr(log_limits, "MOST_LOG_BYTES", 1)
    (tmp_path / "other").write_text("words")
    (tmp_path / "rank-00000.log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="link"):
        limit_log(tmp_path / "rank-00000.log")
    assert (tmp_path / "other").read_text() == "words"
