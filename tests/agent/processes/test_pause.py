"""If the agent and all its ranks pause together, as on a suspended machine, no rank stalls."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_base import processes
from tests.support.coroutines import wait_until
from tests.support.trees import running

pytestmark = pytest.mark.system

PAUSE_S = 3.0
"""Seconds of a pause: just long enough to distinguish a stall that counts from one that does not."""

TOLERANCE_S = 1.5
"""Seconds that a loaded machine may add until all processes continue and the agent has looked."""

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"

View = list[tuple[float, str]]
"""Seconds of the stall and state of the process, of each rank."""


class Agent:
    """A process that runs an agent's clock."""

    def __init__(self, folder: Path, pids: list[int]) -> None:
        script = Path(__file__).parents[2] / "support" / "paused_agent.py"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parents[2]), *sys.path])}
        command = [sys.executable, str(script), str(folder), *map(str, pids)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        self.pid = self._process.pid
        self._views: queue.SimpleQueue[View] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._views.put([(stalled_s, state) for stalled_s, state in json.loads(line)])

    def wait_for(self, condition: Callable[[View], bool]) -> View:
        """Return its first view from now on that meets the condition."""
        while not self._views.empty():
            self._views.get()
        while not condition(view := self._views.get(timeout=60)):
            pass
        return view

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


@contextlib.contextmanager
def watched_by_an_agent(folder: Path) -> Iterator[tuple[Agent, list[int]]]:
    with running(SLEEPS) as first, running(SLEEPS) as second:
        pids = [first.pid, second.pid]
        agent = Agent(folder, pids)
        try:
            agent.wait_for(lambda view: all(stalled_s > 0.5 for stalled_s, _ in view))
            yield agent, pids
        finally:
            agent.end()


def stop(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: {processes.process_state(pid) for pid in pids} == {"T"}, "all are stopped")


def test_time_in_which_the_agent_was_stopped_with_its_ranks_counts_for_no_rank(folder: Path) -> None:
    with watched_by_an_agent(folder) as (agent, ranks):
        for pids in ([agent.pid, *ranks], [*ranks, agent.pid], [ranks[0], agent.pid, ranks[1]]):
            before = agent.wait_for(lambda view: len(view) == 2)
            stop(pids)
            time.sleep(PAUSE_S)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            after = agent.wait_for(lambda view: all(state == "S" for _, state in view))
            for (stalled_s, _), (was_s, _) in zip(after, before, strict=True):
                assert stalled_s < was_s + TOLERANCE_S


@pytest.mark.parametrize("last", [0, 1])
def test_a_rank_that_continues_last_has_not_stalled(folder: Path, last: int) -> None:
    with watched_by_an_agent(folder) as (agent, ranks):
        stop([agent.pid, *ranks])
        for pid in (agent.pid, ranks[1 - last]):
            os.kill(pid, signal.SIGCONT)
        view = agent.wait_for(lambda view: view[last][1] == "T" and view[last][0] > TOLERANCE_S)
        assert view[1 - last][1] == "S"
        os.kill(ranks[last], signal.SIGCONT)
        view = agent.wait_for(lambda view: view[last][1] == "S")
        assert view[last][0] < TOLERANCE_S
