import json
import os
import sys
import threading
from pathlib import Path

import pytest

from holdfast_daemon.notify.channels.command import CommandProgram
from holdfast_daemon.notify.channels.sending import DeliveryDelayedError, DeliveryRefusedError
from holdfast_daemon.notify.message import as_json
from tests.daemon.notify.test_delivery import message
from tests.support.coroutines import wait_until

KEEP = """
import json, os, pathlib, sys
place = pathlib.Path(sys.argv[1])
place.write_text(json.dumps({"in": json.load(sys.stdin), "env": dict(os.environ), "argv": sys.argv[2:]}))
"""


def program(script: str, *arguments: str, timeout_s: float = 60.0) -> CommandProgram:
    return CommandProgram((sys.executable, "-c", script, *arguments), timeout_s)


def test_a_program_gets_the_message_on_stdin_and_in_short_in_its_environment(tmp_path: Path) -> None:
    sent = message(3)
    program(KEEP, str(tmp_path / "got"), "$(touch x); *").send(sent)
    got = json.loads((tmp_path / "got").read_text())
    assert (got["in"], got["env"]["HOLDFAST_NOTIFY_STATUS"]) == (json.loads(json.dumps(as_json(sent))), "open")
    assert got["env"]["HOLDFAST_NOTIFY_KEY"] == "run/i/3"
    assert got["argv"] == ["$(touch x); *"]  # no shell has read it


def test_a_program_that_fails_is_run_again_later() -> None:
    with pytest.raises(DeliveryDelayedError, match="exited with code 3"):
        program("raise SystemExit(3)").send(message())


def test_a_program_that_reads_nothing_has_taken_the_message() -> None:
    program("pass").send(message())


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(map(int, pids.read_text().split())))
    reader.start()
    script = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(1000)
"""
    with pytest.raises(DeliveryDelayedError, match="was killed"):
        program(script, str(pids), timeout_s=3.0).send(message())
    reader.join(10)
    assert len(found) == 2
    for pid in found:
        wait_until(lambda pid=pid: not is_running(pid), f"process {pid} has ended")  # type: ignore[misc]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_does_not_exist_is_not_tried_again() -> None:
    with pytest.raises(DeliveryRefusedError, match="cannot be run: No such file"):
        CommandProgram(("/nowhere/program",), 1.0).send(message())
