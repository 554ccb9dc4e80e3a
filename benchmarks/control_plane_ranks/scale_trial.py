"""One size of ``benchmarks/control_plane.py``: a server, a daemon and simulated agents, and what they use."""

import asyncio
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.control_plane_ranks.agent_writes import AgentWrites
from benchmarks.control_plane_ranks.training_nodes import INSTANCE, LAYOUTS, RANKS_PER_NODE, RUN, TrainingNodes
from holdfast_agent.agent import PROMPT_PAUSE_S, QUIET_PAUSE_S, prompt_pause_s
from holdfast_agent.processes.rank import STALLED_AFTER_S
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.support.daemons import daemon_process
from tests.support.exposition import total
from tests.support.run_keys import opened, sealed
from tests.support.store_server import StoreServer

DEADLINE_STEPS = 3.0
"""Deadline of a hang in steps, once the durations of steps are known, with a preset whose floor is lower."""
LEARNING_STEPS, HEALTHY_STEPS = 3, 3
"""Steps that teach the daemon its deadlines, and steps that are measured after them."""
AT_A_TIME = 32
"""Nodes that write together."""
ROUND_S = PROMPT_PAUSE_S
"""Simulated seconds of a round: in each, the nodes write whose states are due."""
LATE_S = 30.0
"""Simulated seconds after its deadline in which a hang must be reported."""
_TICKS = "holdfast_coordinator_tick_duration_seconds"
_TOKEN = b"all-written"


@dataclass(frozen=True)
class Usage:
    """What the daemon and the server have used until a moment."""

    wall_s: float
    daemon_s: float
    server_s: float
    in_bytes: float
    out_bytes: float
    ticks: float
    core_s: float


class ScaleTrial:
    """Agents of one size that write to a server, at the pace of agents or slower."""

    def __init__(self, ranks: int, step_s: float, seed: int, limit_s: float) -> None:
        self.nodes = TrainingNodes(LAYOUTS[ranks], step_s, seed)
        self._step_s = step_s
        self._ends = time.monotonic() + limit_s
        self.now_s = self._trained_s = self._round_s = 0.0
        self._round_began = time.monotonic()

    @contextmanager
    def servers(self) -> Iterator[None]:
        """Start a server with a run that trains."""
        with tempfile.TemporaryDirectory(prefix="hf-") as name:
            server = StoreServer(Path(name))
            try:
                server.start()
                self._server, self._folder = server, Path(name)
                self.client = server.client()
                yield
            finally:
                server.kill()

    async def connect(self) -> None:
        """Publish the run as one that trains, with the first state of each node."""
        names = list(self.nodes.nodes)
        self.now_s = self._trained_s = 0.0
        self.spec = store.RunSpec(run=RUN, nodes=len(names), ranks_per_node=RANKS_PER_NODE, instance=INSTANCE)
        self.spec.mode, self.spec.preset = store.MODE_OBSERVE, store.PRESET_FAST
        self.spec.command.append("train.py")
        record = store.CoordinatorState(run=RUN, phase=store.RUN_PHASE_RUNNING, generation=1, newest_step=49)
        record.nodes.extend(names)
        self.client.set(keys.state(RUN), sealed(keys.state(RUN), record, run=RUN, instance=INSTANCE))
        self._writes = AgentWrites(self.spec, names)
        self._reader, self._writer = await asyncio.open_unix_connection(self._server.socket, limit=2**26)
        self._due_s = dict.fromkeys(names, 0.0)
        await self.round(trains=False)
        for number, name in enumerate(names):  # from now on they write one after another
            self._due_s[name] = self.now_s + number % round(QUIET_PAUSE_S / ROUND_S) * ROUND_S

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Run the daemon."""
        with daemon_process(self._folder, self._server) as self._daemon:
            self._daemon_process = psutil.Process(self._daemon.process.pid)
            info: Any = self.client.info("server")
            self._server_process = psutil.Process(info["process_id"])
            yield

    async def _send(self, data: bytes) -> None:
        self._writer.write(data + b"*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(_TOKEN), _TOKEN))
        await self._writer.drain()
        replies = await asyncio.wait_for(self._reader.readuntil(_TOKEN + b"\r\n"), 120.0)
        if replies.startswith(b"-") or b"\r\n-" in replies:
            raise RuntimeError(f"the server refused a write: {replies[:200]!r}")

    async def round(self, *, trains: bool = True) -> None:
        """Let the nodes whose states are due publish them, and send what ranks have finished."""
        if time.monotonic() > self._ends:
            raise TimeoutError("it did not end within its time: raise --limit")
        self._round_began, self._round_s = time.monotonic(), self.now_s
        names = list(self.nodes.nodes)
        due = [name for name in names if self._due_s[name] <= self.now_s + 1e-9]
        for first in range(0, len(due), AT_A_TIME):
            some = due[first : first + AT_A_TIME]
            states = [self.nodes.state_at(node, self._trained_s, self.now_s) for node in some]
            await self._send(await self._writes.of_states(states))
            for state in states:
                is_quiet = not any(rank.stalled_s >= STALLED_AFTER_S for rank in state.ranks)
                self._due_s[state.node] = self.now_s + (QUIET_PAUSE_S if is_quiet else prompt_pause_s(len(names)))
        before = int(self._trained_s / self._step_s + 1e-9)
        self.now_s += ROUND_S
        self._trained_s += ROUND_S if trains else 0.0
        after = int(self._trained_s / self._step_s + 1e-9)
        if after > before:
            await self._send(await self._writes.of_events({node: self.nodes.summary(node, before) for node in names}))
        left_s = ROUND_S - (time.monotonic() - self._round_began)
        await asyncio.sleep(max(0.0, left_s))

    async def train(self, steps: int) -> None:
        """Let the ranks do whole steps."""
        for _ in range(round(steps * self._step_s / ROUND_S)):
            await self.round()

    async def until_led(self) -> None:
        """Train until the daemon has made a few ticks."""
        while total(await self.scrape(), f"{_TICKS}_count") < 5:
            await self.round()

    async def scrape(self) -> str:
        """Return the daemon's metrics."""
        url = f"http://127.0.0.1:{self._daemon.metrics_port}/metrics"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=120) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(read)

    async def usage(self) -> Usage:
        """Return what has been used until now."""
        text = await self.scrape()
        daemon, server = self._daemon_process.cpu_times(), self._server_process.cpu_times()
        stats: Any = self.client.info("stats")
        return Usage(
            wall_s=time.monotonic(),
            daemon_s=daemon.user + daemon.system,
            server_s=server.user + server.system,
            in_bytes=stats["total_net_input_bytes"],
            out_bytes=stats["total_net_output_bytes"],
            ticks=total(text, f"{_TICKS}_count"),
            core_s=total(text, f"{_TICKS}_sum"),
        )

    def used_s(self) -> float:
        """Return the CPU seconds of the daemon and the server together."""
        times = (self._daemon_process.cpu_times(), self._server_process.cpu_times())
        return float(sum(each.user + each.system for each in times))

    async def healthy(self, steps: int) -> dict[str, float]:
        """Return what a healthy run uses in a simulated second, a tick and a scrape."""
        before, began_s = await self.usage(), self.now_s
        await self.train(steps)
        after, simulated_s = await self.usage(), self.now_s - began_s
        ticks = max(1.0, after.ticks - before.ticks)
        scrapes = []
        for _ in range(3):
            started = time.perf_counter()
            await self.scrape()
            scrapes.append(time.perf_counter() - started)
        node = next(iter(self.nodes.nodes.values()))
        return {
            "factor": (after.wall_s - before.wall_s) / simulated_s,
            "state_kb": node.ByteSize() / 1e3,
            "in_mb_per_s": (after.in_bytes - before.in_bytes) / simulated_s / 1e6,
            "out_mb_per_s": (after.out_bytes - before.out_bytes) / simulated_s / 1e6,
            "daemon_cores": (after.daemon_s - before.daemon_s) / simulated_s,
            "server_cores": (after.server_s - before.server_s) / simulated_s,
            "ticks": ticks,
            "tick_cpu_s": (after.daemon_s - before.daemon_s) / ticks,
            "core_tick_s": (after.core_s - before.core_s) / ticks,
            "rss_mb": self._daemon_process.memory_info().rss / 1e6,
            "scrape_s": statistics.median(scrapes),
            "refused": self._daemon.refused(RUN),
        }

    async def _first_hang(self, deadline_s: float) -> tuple[float, float, store.Verdict]:
        """Return the simulated seconds after the deadline, the CPU seconds in them, and the verdict."""
        used_s: float | None = None
        while True:
            past_s = self._round_s + min(ROUND_S, time.monotonic() - self._round_began) - deadline_s
            if used_s is None and past_s >= 0:
                used_s = self.used_s()
            entries: Any = await asyncio.to_thread(self.client.hgetall, keys.incidents(RUN))
            for name, data in entries.items():
                place = keys.incident(RUN, name.decode())
                verdict = store.Incident.FromString(opened(place, data, run=RUN, instance=INSTANCE)).verdict
                if verdict.kind == store.VERDICT_KIND_HUNG_COLLECTIVE:
                    return past_s, self.used_s() - used_s if used_s is not None else 0.0, verdict
            await asyncio.sleep(0.01)

    async def hang(self) -> dict[str, Any]:
        """Stop one rank, and wait for the verdict."""
        self.nodes.hang(self.now_s)
        # An agent writes soon after a rank has stood still for a while, and not only when a quiet node's time comes.
        self._due_s = {name: min(due_s, self.now_s + STALLED_AFTER_S) for name, due_s in self._due_s.items()}
        deadline_s = self.now_s + DEADLINE_STEPS * self._step_s
        seen = asyncio.create_task(self._first_hang(deadline_s))
        try:
            while not seen.done() and self.now_s < deadline_s + LATE_S:
                await self.round(trains=False)
        finally:
            culprit = self.nodes.culprit
            self.nodes.go_on()
            is_seen = seen.done()
            seen.cancel()
        if not is_seen:
            return {"after_s": None, "cpu_s": None, "named": False}
        after_s, cpu_s, verdict = seen.result()
        return {"after_s": after_s, "cpu_s": cpu_s, "named": list(verdict.culprits) == [culprit]}

    async def close(self) -> None:
        """End the agents."""
        await self._writes.close()
        self._writer.close()


async def measure(ranks: int, cases: int, step_s: float, seed: int, limit_s: float) -> dict[str, Any]:
    """Return the figures of one size. Raises TimeoutError if there are none within the limit."""
    trial = ScaleTrial(ranks, step_s, seed, limit_s)
    row: dict[str, Any] = {"ranks": ranks, "hangs": []}
    try:
        for _ in range(cases):
            with trial.servers():
                await _one_hang(trial, row)
    except TimeoutError as error:
        if "rss_mb" not in row:
            raise
        row["given_up"] = str(error)
    return row


async def _one_hang(trial: ScaleTrial, row: dict[str, Any]) -> None:
    """Add a hang to the row. Each has a run of its own: a run waits longer for a standstill that it knows."""
    await trial.connect()
    with trial.daemon():
        try:
            await trial.until_led()
            await trial.train(LEARNING_STEPS)
            if "rss_mb" not in row:
                row |= await trial.healthy(HEALTHY_STEPS)
            row["hangs"].append(await trial.hang())
        finally:
            await trial.close()
