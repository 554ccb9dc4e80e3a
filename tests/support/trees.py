"""Process trees that do something, and the agent's view of them."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast_agent.movement.tree_movement import moved, sign_of_life
from holdfast_agent.movement.tree_reader import Machine, TreeReader
from holdfast_agent.movement.tree_sample import TreeSample
from holdfast_agent.movement.tree_watch import Stillness
from holdfast_base import processes

PATIENCE_S = 60.0
LOOK_S = 0.3
"""Seconds between two looks: shorter than an agent's interval, so that the tests end sooner."""


@dataclass
class Running:
    """A process that a test has started."""

    pid: int
    said: str
    """First line of its output."""
    say: Callable[[str], None]
    """Function that sends it a line."""


@contextlib.contextmanager
def running(code: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> Iterator[Running]:
    """Run a Python process that leads its session, as ranks do, and that prints a line once it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=pass_fds,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, said = process.stdin, process.stdout.readline().strip()
        assert said, "it has ended early"
        try:
            yield Running(process.pid, said, lambda line: print(line, file=stdin, flush=True))
        finally:
            processes.kill_session(process.pid, processes.start_ticks(process.pid))


class Tree:
    """The tree of one process under watch."""

    def __init__(self, pid: int, *, store_port: int = 0, agent_pid: int = 0) -> None:
        self._reader = TreeReader((pid, processes.start_ticks(pid)), store_port=store_port, agent_pid=agent_pid)
        self._before: TreeSample | None = None

    def look(self) -> TreeSample:
        """Return the tree as it is now."""
        sample = self._reader.read(Machine.read())
        assert sample is not None, "it has ended"
        return sample

    def move(self) -> str:
        """Return the kind of movement between two looks."""
        self._before = self._before or self.look()
        time.sleep(LOOK_S)
        now = self.look()
        move = moved(self._before, now)
        self._before = now
        return move

    def wait_until(self, condition: Callable[[TreeSample], bool]) -> TreeSample:
        """Return the first sample for which ``condition`` holds."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition(sample := self.look()):
            assert time.monotonic() < deadline_s, sample
            time.sleep(0.02)
        return sample

    def wait_for_moves(self, *kinds: str, in_a_row: int = 3, looks: int = 1) -> None:
        """Wait until ``in_a_row`` series of ``looks`` looks have all seen movement of one of these kinds."""
        seen: list[str] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while not _has_spells(seen, kinds, in_a_row, looks):
            assert time.monotonic() < deadline_s, seen
            seen.append(self.move())

    def wait_for_sign(self, kind: str) -> None:
        """Wait for a sign of life of this kind."""
        before = self.look()
        deadline_s = time.monotonic() + PATIENCE_S
        while (seen := sign_of_life(before, now := self.look())) != kind:
            assert time.monotonic() < deadline_s, seen
            before = now
            time.sleep(LOOK_S)

    def wait_for_stillness(self, still_s: float = 1.2, *, signs: bool = True) -> None:
        """Wait until nothing has moved for ``still_s`` seconds, and without ``signs`` no sign of life has come."""
        stillness = Stillness()
        deadline_s = time.monotonic() + PATIENCE_S
        seen: list[str] = []
        while True:
            began_s = time.monotonic()
            view = stillness.observe(self.look(), began_s=began_s, ended_s=time.monotonic())
            has_signs = view.sign_of_life != "" and view.sign_age_s < still_s
            if view.still_s >= still_s and (signs or not has_signs):
                return
            seen.append(view.moved)
            assert began_s < deadline_s, seen
            time.sleep(LOOK_S)


def _has_spells(seen: list[str], kinds: tuple[str, ...], in_a_row: int, looks: int) -> bool:
    spells = [seen[-looks * (each + 1) : len(seen) - looks * each] for each in range(in_a_row)]
    return len(seen) >= looks * in_a_row and all(set(kinds) & set(spell) for spell in spells)
