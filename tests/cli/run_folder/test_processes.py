import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_base import files
from holdfast_base.run_processes import ProcessIdentity, kill_all, marked_processes
from holdfast_cli.errors import CommandError
from holdfast_cli.run_folder.record import load_record
from holdfast_cli.run_folder.run_end import end_run
from tests.cli.conftest import identity_of, run_record


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "MARK": "mine"}) as process:
        yield process
        process.kill()


def test_process_that_has_got_the_pid_of_another_is_not_signalled(sleeper: "subprocess.Popen[bytes]") -> None:
    found = identity_of(sleeper.pid)
    earlier = ProcessIdentity(found.pid, found.start_ticks - 1)
    assert kill_all([earlier]) == 0
    assert not earlier.signal(signal.SIGKILL)
    assert sleeper.poll() is None
    assert kill_all([found]) == 1
    assert sleeper.wait(timeout=10) == -signal.SIGKILL


def test_marked_processes_are_this_users_alone(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [each.pid for each in marked_processes("MARK", "mine")] == [sleeper.pid]
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert list(marked_processes("MARK", "mine")) == []


def test_record_that_another_user_may_have_written_kills_no_process(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = identity_of(sleeper.pid)
    saved = run_record(tmp_path, pid=found.pid, start_ticks=found.start_ticks)
    saved.save()
    assert load_record(tmp_path) == saved
    (tmp_path / "run.json").chmod(0o666)
    loaded = load_record(tmp_path)
    assert loaded is not None and loaded.run == "run"  # it can be looked at
    with pytest.raises(CommandError, match=r"run\.json can be written by others .*: run this as the user who started"):
        end_run(loaded, 1.0)
    assert sleeper.poll() is None
    (tmp_path / "run.json").chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(files, "_owner_of_new_files", lambda directory: os.getuid() + 1)
    loaded = load_record(tmp_path)
    assert loaded is not None
    with pytest.raises(CommandError, match="belongs to another user"):
        loaded.check_own()
