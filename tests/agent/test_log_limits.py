"""Logs of old generations go, and those of the newest stay, whatever their numbers."""

import os
from pathlib import Path

from holdfast_agent.log_limits import GENERATIONS_LOGGED, begin_logs


def made(logs: Path, generation: int, unix_s: float) -> Path:
    folder = logs / f"generation-{generation:04}"
    folder.mkdir(parents=True)
    (folder / "rank-00000.log").write_text("words\n")
    os.utime(folder, (unix_s, unix_s))
    return folder


def test_the_newest_generations_keep_their_logs_and_a_new_start_is_the_newest(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    earlier = [made(logs, 1000 + number, 10.0 + number) for number in range(GENERATIONS_LOGGED)]
    began = [made(logs, number, 5000.0 - number) for number in (1, 2)]
    reused = made(logs, 3, 1.0)
    (logs / "agent.log").write_text("")
    (tmp_path / "other").mkdir()
    (logs / "generation-0004").symlink_to(tmp_path / "other")
    begin_logs(reused)
    assert set(logs.glob("generation-*")) == {*earlier[3:], *began, reused, logs / "generation-0004"}
    assert (reused / "rank-00000.log").exists()
    assert (logs / "agent.log").exists()
