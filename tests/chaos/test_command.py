"""The command as a user has it: bad input, Ctrl-C, and what is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import PATIENCE_S, Runs

pytestmark = pytest.mark.system

HOLDFAST = [sys.executable, "-m", "holdfast_cli"]


def holdfast(*arguments: str, cwd: Path, timeout_s: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HOLDFAST, *arguments], cwd=cwd, check=False, capture_output=True, text=True, timeout=timeout_s
    )


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--model.wheels", "4"], "model.wheels"),
        (["--parallel.dp", "4"], "parallel.dp"),
        (["--model.heads", "3"], "model.heads"),
    ],
)
def test_a_wrong_configuration_of_the_trainer_ends_the_run_with_its_line(
    runs: Runs, tmp_path: Path, flags: list[str], named: str
) -> None:
    trainer = ["python", "-m", "holdfast_trainer", "--config", str(runs.config), *flags]
    done = holdfast("run", "--ranks", "4", "--", *trainer, cwd=tmp_path)
    assert done.returncode != 0
    assert named in last_line(done.stderr)
    assert done.stderr.count("generation 2") == 0


def test_ctrl_c_ends_everything(runs: Runs, tmp_path: Path) -> None:
    trainer = ["python", "-m", "holdfast_trainer", "--config", str(runs.config), "--train.steps", "100000"]
    environment = {**os.environ, "HOLDFAST_TEST_MARK": runs.mark}
    name = f"ctrl-c-{runs.mark[:8]}"
    command = [*HOLDFAST, "run", "--run", name, "--ranks", "4", "--preset", "fast", "--", *trainer]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "step" in line:
            break
    assert len(runs.processes()) > 4
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode not in (0, None)
    assert not runs.processes()
    assert not [path for path in Path("/dev/shm").iterdir() if name in path.name]


def test_a_taken_metrics_port_is_named(runs: Runs, tmp_path: Path) -> None:
    flags = ("--parallel.dp=1", "--parallel.pp=1")
    with (
        runs.run("taken", ranks=1, flags=flags, steps=100_000) as running,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        port = str(taken.getsockname()[1])
        done = holdfast(
            *["daemon", "--name", "second", "--redis", running.store_url, "--directory", str(tmp_path)],
            *["--control", str(tmp_path / "d.sock"), "--metrics-port", port],
            cwd=tmp_path,
        )
    assert done.returncode != 0
    assert port in last_line(done.stderr)
    assert "--metrics-port" in last_line(done.stderr)


def test_without_a_redis_the_ways_to_get_one_are_named(tmp_path: Path) -> None:
    started = time.monotonic()
    done = holdfast("run", "--redis", "redis://127.0.0.1:1/0", "--", "python", "-c", "pass", cwd=tmp_path)
    assert done.returncode != 0
    assert "--redis" in last_line(done.stderr)
    assert time.monotonic() - started < PATIENCE_S
