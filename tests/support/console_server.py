"""A real console over simulated runs, for tests and browsers.

In a test: ``with simulated_console(folder, ranks=8) as it: ...``. By hand: ``python -m tests.support.console_server
--ranks 8``, which prints the address as JSON and then takes lines: ``hang 3``, ``kill 3``, ``judge 3``, ``recover``,
``checkpoint``, ``end``, ``store down``, ``store up``, ``advance 10``, ``quit``.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_daemon.clock import Clock
from holdfast_daemon.console.console_server import ConsoleServer
from holdfast_daemon.console.serving.sessions import load_tokens
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_daemon.daemon_options import DaemonOptions
from holdfast_daemon.incidents.incident_folder import write_story
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_proto import run_files
from holdfast_proto.v1.agent_record_pb2 import AgentRecord
from tests.support.histories import counted, write_steps
from tests.support.simulated_run import SimulatedRun
from tests.support.snapshots import Snapshots

TICK_S = 0.2
PAST_STEPS = 200
STACK = """Thread 4711 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    train (train.py:88)
"""


class _SimulatedClock(Clock):
    def __init__(self, runs: dict[str, SimulatedRun]) -> None:
        super().__init__()
        self._runs = runs

    def now(self) -> float:
        """Return the time of the simulated runs, which do not live now."""
        return max((run.now for run in self._runs.values()), default=super().now())


@dataclass
class SimulatedConsole:
    """A console that serves. ``on_loop`` runs a function where the daemon would: use it to change runs."""

    server: ConsoleServer
    runs: dict[str, SimulatedRun]
    directory: Path
    operator: str
    viewer: str
    loop: asyncio.AbstractEventLoop

    @property
    def run(self) -> SimulatedRun:
        """The first run."""
        return next(iter(self.runs.values()))

    @property
    def port(self) -> int:
        """Port of the console."""
        return self.server.port

    @property
    def origin(self) -> str:
        """Address of the console."""
        return f"http://127.0.0.1:{self.port}"

    def address(self, token: str = "") -> str:
        """Return the address as the command prints it."""
        return f"{self.origin}/#token={token or self.operator}"

    def on_loop(self, change: Callable[[], Any]) -> Any:
        """Run a function on the daemon's loop, and return what it returns."""

        async def call() -> Any:
            return change()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)

    def request(
        self, path: str, body: object = None, *, token: str | None = None, headers: dict[str, str] | None = None
    ) -> HTTPResponse:
        """Send a request with the operator's token, or another one; raises HTTPError for an error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.origin}{path}", data, method="GET" if data is None else "POST")
        given = self.operator if token is None else token
        if given:
            request.add_header("Authorization", f"Bearer {given}")
        if data is not None:
            request.add_header("Origin", self.origin)
        for name, value in (headers or {}).items():
            request.remove_header(name.capitalize())
            request.add_header(name, value)
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=20)
        return answer

    def get(self, path: str, **options: Any) -> Any:
        """Return the JSON at a path."""
        with self.request(path, **options) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def simulated_console(
    folder: Path, *, ranks: int = 8, runs: int = 1, moves: bool = False, with_files: bool = True, **options: Any
) -> Iterator[SimulatedConsole]:
    """Yield a console over simulated runs. ``moves``: they train by the clock; else only when a test advances them.

    ``options``: further settings of the daemon.
    """
    simulated = {}
    for number in range(runs):
        name = "llama-7b" if number == 0 else f"llama-7b-{number}"
        simulated[name] = SimulatedRun(
            run_name=name,
            ranks=ranks,
            seed=number,
            steps_until=10_000,
            checkpoint_directory=str(folder / "checkpoints"),
        )
    if with_files:
        _write_files(folder, next(iter(simulated.values())))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="simulated-daemon", daemon=True)
    thread.start()
    clock = _SimulatedClock(simulated)
    settings = DaemonOptions(
        name="simulated",
        store_url="unix:///none",
        directory=folder,
        control=folder / "daemon.sock",
        metrics_address="127.0.0.1",
        metrics_port=0,
        lease_s=2.0,
        **options,
    )
    watched = WatchedDaemon(
        options=settings,
        runs=simulated,
        clock=clock,
        ticks=TickMetrics(CollectorRegistry()),
        loop=loop,
        started_unix_s=clock.now(),
    )
    server = ConsoleServer(watched)
    ticking = asyncio.run_coroutine_threadsafe(_tick(simulated, moves=moves), loop)
    tokens = load_tokens(settings.console_tokens)
    try:
        yield SimulatedConsole(server, simulated, folder, tokens.operator, tokens.viewer, loop)
    finally:
        server.close()
        ticking.cancel()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result()  # the cancelled task ends
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _tick(runs: dict[str, SimulatedRun], *, moves: bool) -> None:
    while True:
        for run in list(runs.values()):
            if moves:
                run.advance(TICK_S)
            else:
                run.serve_requests()
        await asyncio.sleep(TICK_S if moves else 0.02)


def _write_files(folder: Path, run: SimulatedRun) -> None:
    """Write what agents and daemon of a local run leave on disk: logs, checkpoints, an incident that is over."""
    for number in range(2):
        record = run_files.agent_record(folder, f"node{number:04}")
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_bytes(AgentRecord(run=run.run_name, node=f"node{number:04}").SerializeToString())
    for rank in range(min(run.ranks, 16)):
        path = run_files.rank_log(folder, 1, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"rank {rank}: step {step} done\n" for step in range(2000)))
    checkpoints = CheckpointDirectory(folder / "checkpoints", kept=5)
    slots = folder / "slots"
    slots.mkdir(exist_ok=True)
    for step in (10, 20):
        Snapshots(slots).commit(checkpoints, step, world_size=2)
    run.committed[:] = [10, 20]
    write_steps(
        folder,
        (counted(step, loss=2.0 + 6.0 / (1 + 0.02 * step), grad_norm=1.0, step_s=0.5) for step in range(PAST_STEPS)),
        run.run_name,
        "earlier",
    )
    incident = run.judge(min(3, run.ranks - 1))
    run.recover()
    keep_evidence(folder, run, incident.id)
    run.advance(0.0)


def keep_evidence(folder: Path, run: SimulatedRun, identity: str) -> Path:
    """Write an incident's folder, with some evidence; return it."""
    directory = run_files.incidents(folder, run.run_name) / identity
    write_story(directory, run.incidents[identity])
    for rank in range(min(run.ranks, 8)):
        (directory / run_files.rank_evidence(rank, "stack.txt")).write_text(f"Process {10_000 + rank}\n{STACK}")
    (directory / "suspicion").mkdir(exist_ok=True)
    (directory / "suspicion" / "node-node0000.system.txt").write_text("load 1.0\n")
    return directory


def main(arguments: list[str]) -> None:
    """Serve until stdin ends or says ``quit``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--still", action="store_true", help="do not train by the clock")
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="hf-console-") as folder,
        simulated_console(
            Path(folder), ranks=given.ranks, runs=given.runs, moves=not given.still, console_port=given.port
        ) as it,
    ):
        addresses = {"operator": it.address(), "viewer": it.address(it.viewer), "origin": it.origin}
        print(json.dumps({**addresses, "token": it.operator, "viewer_token": it.viewer}), flush=True)
        for line in sys.stdin:
            words = line.split()
            if words[:1] == ["quit"]:
                return
            print(json.dumps({"done": obey(it, words)}), flush=True)


def obey(it: SimulatedConsole, words: list[str]) -> str:
    """Carry out one line of :func:`main`; return what was done."""
    run = it.run
    number = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0

    def change() -> None:
        match words:
            case ["hang", _]:
                run.hang(number)
            case ["kill", _]:
                run.kill(number)
            case ["judge", _]:
                keep_evidence(it.directory, run, run.judge(number).id)
            case ["recover"]:
                run.recover()
            case ["checkpoint"]:
                run.committed.append(run.state.record.newest_step if run.state else 0)
            case ["end"]:
                run.end()
            case ["store", word]:
                run.store_up = word == "up"
            case ["advance", seconds]:
                run.advance(float(seconds))
            case ["forget"]:
                del it.runs[run.run_name]
            case _:
                raise ValueError(f"unknown: {' '.join(words)}")

    it.on_loop(change)
    return " ".join(words)


if __name__ == "__main__":
    main(sys.argv[1:])
