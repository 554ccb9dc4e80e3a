"""``holdfast top`` on a real run, in a terminal: it follows the steps, and leaves the terminal as it found it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import PATIENCE_S, Runs

pytestmark = pytest.mark.system

TOP = [sys.executable, "-m", "holdfast_cli", "top"]
STEPS = re.compile(rb"(\d+) of 100000 steps")


class Terminal:
    """A pseudo-terminal of 80 columns with a command in it."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        environment = {**os.environ, "TERM": "xterm-256color"}
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), self.slave)
        self.process = subprocess.Popen([*TOP, *arguments], cwd=cwd, env=environment, start_new_session=True, **ends)  # type: ignore[call-overload]

    def read(self) -> None:
        """Take in what was written, and wait a little if nothing was."""
        if select.select([self.master], [], [], 0.05)[0]:
            self.output += os.read(self.master, 1 << 16)

    def steps(self) -> list[int]:
        """Return the numbers of steps that were shown."""
        return [int(found) for found in STEPS.findall(self.output)]

    def hang_up(self) -> None:
        """Take the terminal away, as the end of a connection does."""
        os.close(self.slave)
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            self.hang_up()


@pytest.fixture
def terminal(runs: Runs, tmp_path: Path) -> Iterator[Terminal]:
    with runs.run("top", ranks=1, flags=("--parallel.dp=1", "--parallel.pp=1"), steps=100_000):
        it = Terminal("--run", "top", "--directory", str(runs.folder), cwd=tmp_path)
        yield it
        it.close()


@pytest.mark.gate
def test_the_steps_are_seen_to_grow_and_q_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(set(terminal.steps())) < 3:
        assert time.monotonic() < deadline, terminal.output[-3000:]
        assert terminal.process.poll() is None, terminal.output[-3000:]
        terminal.read()
    assert terminal.steps() == sorted(terminal.steps())
    assert termios.tcgetattr(terminal.slave) != terminal.before, "it reads single keys"
    assert b"\x1b[?1049h" in terminal.output
    os.write(terminal.master, b"q")
    while terminal.process.poll() is None:
        assert time.monotonic() < deadline, "q does not quit"
        terminal.read()
    terminal.read()
    assert terminal.process.returncode == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert terminal.output.rindex(b"\x1b[?1049l") > terminal.output.rindex(b"\x1b[?1049h")
    assert terminal.output.rindex(b"\x1b[?25h") > terminal.output.rindex(b"\x1b[?25l")


def test_it_ends_with_its_terminal_and_does_not_use_a_core_for_good(terminal: Terminal) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not terminal.steps():
        assert time.monotonic() < deadline, terminal.output[-3000:]
        terminal.read()
    terminal.hang_up()
    assert terminal.process.wait(PATIENCE_S) == 128 + signal.SIGHUP
