"""Measure what an agent costs on its node: CPU time and memory, with eight ranks that train, and with none.

A real store serves two real agents of one run, which run at the same time. Eight simulated ranks report to the first
one through real sessions on its socket. The second one has no ranks, so the difference is what the ranks cost. Each
rank has eight process groups and two channels, and its steps take two seconds. Real ranks send five reports a second.
Their processes sleep here, and have no other threads that the agent could look at.

    python benchmarks/agent.py [--json] [--quick] [--rates 5 20] [--seconds 30]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.control_plane_ranks.training_nodes import INSTANCE, LAYOUTS, RANKS_PER_NODE, RUN, TrainingNodes
from holdfast_proto import keys, run_files
from holdfast_proto.limits import PROTOCOL
from holdfast_proto.state_value import read_state
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import session_pb2_grpc
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import until, wait_until
from tests.support.run_keys import opened, sealed_spec, write_key
from tests.support.store_server import StoreServer

RANKS, STEP_S = 1_000, 2.0
BUSY, IDLE = "node00000", "idle"
"""The agent with ranks, and the one without."""
RATES = (5.0, 20.0)
"""Reports of a rank in a second: what the hooks send, and four times as many."""
WARM_UP_S = 3.0
QUICK_S = 2.0
WANTED = {"cpu_percent": 2.0, "pss_mb": 80.0}


def with_eight_groups(state: store.RankState) -> store.RankState:
    """Return a rank's state with each of its four groups twice, as a run with context parallelism has them."""
    for group in list(state.progress.groups):
        copy = state.progress.groups.add()
        copy.CopyFrom(group)
        copy.group += "-cp"
    return state


def report_of(state: store.RankState, finished_step: int | None) -> session.RankMessage:
    """Return what the hooks of a rank would report."""
    report = session.Report(
        progress=state.progress,
        memory=session.MemoryStatus(allocated_bytes=60 << 30, reserved_bytes=70 << 30, limit_bytes=80 << 30),
        recorders=state.recorders,
        own_wait_s=state.own_wait_s,
        reporter_cpu_s=state.own_wait_s,
        device=state.device,
        planned_steps=10_000,
    )
    if finished_step is not None:
        report.steps.add(
            step=finished_step,
            ended_unix_s=time.time(),
            duration_s=STEP_S,
            loss=2.0,
            grad_norm=1.0,
            learning_rate=3e-4,
            tokens=8192,
            phase_s=state.phase_s,
        )
    return session.RankMessage(report=report)


@dataclass
class Ranks:
    """The ranks of a node. All of them report at the same rate."""

    nodes: TrainingNodes
    pids: list[int]
    rate: float = RATES[0]
    sent: int = 0

    async def report(self, number: int, socket: Path) -> None:
        """Report forever as one of the ranks."""
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub: Any = session_pb2_grpc.RankAgentStub(channel)  # type: ignore[no-untyped-call]
            async for _ in stub.Session(self._messages(number)):
                pass

    async def _messages(self, number: int) -> AsyncIterator[session.RankMessage]:
        yield session.RankMessage(
            hello=session.Hello(
                run=RUN,
                generation=1,
                rank=number,
                world_size=RANKS,
                local_rank=number,
                local_world_size=RANKS_PER_NODE,
                pid=self.pids[number],
                protocol=PROTOCOL,
            )
        )
        began_s, last = time.monotonic(), -1
        due_s = began_s
        while True:
            trained_s = time.monotonic() - began_s
            state = store.RankState()
            state.CopyFrom(self.nodes.state_at(BUSY, trained_s, trained_s).ranks[number])
            step = state.progress.step
            yield report_of(with_eight_groups(state), step if step > last >= 0 else None)
            last = step
            self.sent += 1
            due_s = max(due_s + 1 / self.rate, time.monotonic() - 1.0)
            await asyncio.sleep(due_s - time.monotonic())


def usage(process: psutil.Process) -> tuple[float, float]:
    """Return the CPU seconds of a process until now, and the time."""
    times = process.cpu_times()
    return times.user + times.system, time.monotonic()


def figures(process: psutil.Process, before: tuple[float, float]) -> dict[str, float]:
    """Return what a process has used since ``before``, and its memory."""
    cpu_s, now_s = usage(process)
    memory = process.memory_full_info()
    return {
        "cpu_percent": 100 * (cpu_s - before[0]) / (now_s - before[1]),
        "pss_mb": memory.pss / 1e6,
        "rss_mb": memory.rss / 1e6,
        "processes": 1 + len(process.children(recursive=True)),
    }


@contextmanager
def agent_process(folder: Path, server: StoreServer, node: str) -> Iterator[psutil.Process]:
    """Yield an agent that serves."""
    options = {"--run": RUN, "--node": node, "--redis": server.url, "--directory": folder / "run"}
    options |= {"--runtime-directory": folder / "sockets", "--shm-directory": folder / "shm", "--metrics-port": 0}
    options["--run-key-file"] = write_key(folder, RUN)
    words = [str(word) for option in options.items() for word in option]
    with (folder / f"{node}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "holdfast_cli", "agent", *words], stderr=log)
    try:
        endpoint = run_files.agent_endpoint(folder / "sockets", node)
        wait_until(lambda: process.poll() is not None or endpoint.exists(), f"the agent of {node} serves")
        assert process.poll() is None, (folder / f"{node}.log").read_text()
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


@contextmanager
def sleeping_processes() -> Iterator[list[int]]:
    """Yield the pids of processes that stand for those of the ranks."""
    processes = [subprocess.Popen(["sleep", "infinity"]) for _ in range(RANKS_PER_NODE)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def published(server: StoreServer) -> store.NodeState:
    """Return the newest state of the agent with ranks."""
    with server.client() as client:
        data: Any = client.get(keys.node(RUN, BUSY))
    return read_state(opened(keys.node(RUN, BUSY), data, run=RUN, instance=INSTANCE)) if data else store.NodeState()


async def measured(folder: Path, server: StoreServer, pids: list[int], given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of both agents at each rate."""
    rows: list[dict[str, Any]] = []
    ranks = Ranks(TrainingNodes(LAYOUTS[RANKS], STEP_S, given.seed), pids)
    with agent_process(folder, server, BUSY) as busy, agent_process(folder, server, IDLE) as idle:
        socket = run_files.session_socket(folder / "sockets", BUSY)
        jobs = [asyncio.create_task(ranks.report(number, socket)) for number in range(RANKS_PER_NODE)]
        await until(lambda: sum(rank.steps_done > 0 for rank in published(server).ranks) == RANKS_PER_NODE, "all train")
        for ranks.rate in given.rates:
            await asyncio.sleep(WARM_UP_S)
            before, sent, began_s = [usage(busy), usage(idle)], ranks.sent, time.monotonic()
            await asyncio.sleep(QUICK_S if given.quick else given.seconds)
            reports_per_s = (ranks.sent - sent) / (time.monotonic() - began_s) / RANKS_PER_NODE
            of_busy, of_idle = figures(busy, before[0]), figures(idle, before[1])
            rows.append({"rate": ranks.rate, "reports_per_s": reports_per_s, "agent": of_busy, "idle": of_idle})
        state = published(server)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    groups = [len(rank.progress.groups) for rank in state.ranks if rank.life == store.LIFE_RUNNING]
    return {"ranks": len(groups), "groups": min(groups, default=0), "load": os.getloadavg()[0], "rows": rows}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Start the store, the agents and the ranks, and return the figures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-")))
        (folder / "shm").mkdir()
        server = StoreServer(folder)
        stack.callback(server.kill)
        server.start()
        spec = store.RunSpec(run=RUN, nodes=RANKS // RANKS_PER_NODE, ranks_per_node=RANKS_PER_NODE, instance=INSTANCE)
        spec.mode, spec.checkpoints_kept = store.MODE_OBSERVE, 2
        spec.checkpoint_directory = str(folder / "checkpoints")
        with server.client() as client:
            client.set(keys.spec(RUN), sealed_spec(spec))
        pids = stack.enter_context(sleeping_processes())
        return asyncio.run(measured(folder, server, pids, given))


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(
        "reports of a rank", "agent, CPU", "agent, PSS (RSS)", "without ranks, CPU", "without ranks, PSS (RSS)"
    )
    for row in found["rows"]:
        cells = [f"{row['reports_per_s']:.1f} /s"]
        for who in ("agent", "idle"):
            cells.append(f"{row[who]['cpu_percent']:.2f} %")
            cells.append(f"{row[who]['pss_mb']:.0f} MB ({row[who]['rss_mb']:.0f})")
        table.add_row(*cells)
    table.add_row("wanted, at most", f"{WANTED['cpu_percent']:.0f} %", f"{WANTED['pss_mb']:.0f} MB", "", "")
    Console().print(
        table, f"{found['ranks']} ranks with {found['groups']} groups. Load of the machine: {found['load']:.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="reports of a rank in a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds for each rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of what the ranks report (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="measure each rate for two seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    given = parser.parse_args()
    found = measure(given)
    show(found)
    if given.json:
        print(json.dumps(found))
    within = all(row["agent"][name] <= most for row in found["rows"] for name, most in WANTED.items())
    return 0 if within and found["ranks"] == RANKS_PER_NODE else 1


if __name__ == "__main__":
    sys.exit(main())
