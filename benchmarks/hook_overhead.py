"""Measure what the hooks cost the training thread per step, with a live reporter and a real server as the agent.

Times all hook calls of one step: the turn-around of ``steps()``, three ``enter()`` calls and one ``report()``. No
snapshot is due. The cost of reading the clock is subtracted. Of several rounds the quietest counts, because the noise
of other processes is not a cost of the hooks.

Then measures the share of a core that the hooks' own threads (reporter and link) take. The training loop makes ten
steps a second with two collective calls each. Exits with 1 if a ceiling is broken.

And it times hooks.should_update(), which only scripts pay that call it: alone, and with two ranks on gloo.
"""

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

import holdfast_hooks
from holdfast_hooks import Hooks, Phase
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1 import session_pb2, session_pb2_grpc

P50_CEILING_US = 5.0
P99_CEILING_US = 20.0
REPORTER_CEILING_CORE_RATIO = 0.005
PACED_STEPS_PER_S = 10
PACED_STEPS = 80
WARM_UP_STEPS = 500
HEARTBEATS = 2000
WORK = bytes(64 * 1024)

Percentiles = dict[str, float]


class Agent(session_pb2_grpc.RankAgentServicer):
    """As much of an agent as a rank needs for its reports."""

    def Session(  # noqa: N802 - gRPC's name
        self, requests: Iterator[session_pb2.RankMessage], _context: grpc.ServicerContext
    ) -> Iterator[session_pb2.AgentMessage]:
        """Welcome the rank and read everything it sends."""
        next(requests)
        yield session_pb2.AgentMessage(welcome=session_pb2.Welcome(report_interval_s=0.2))
        for _ in requests:
            pass


def serve(socket: str) -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    session_pb2_grpc.add_RankAgentServicer_to_server(Agent(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()


@contextmanager
def attached(folder: Path) -> Iterator[Hooks]:
    """Yield hooks that are attached to an agent in a process of its own."""
    socket = folder / "agent.sock"
    context = RankContext(run="bench", generation=0, agent=f"unix:{socket}", black_box=str(folder / "black-box"))
    os.environ.update(context.to_environment())
    command = [sys.executable, __file__, "--serve", str(socket)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        with holdfast_hooks.attach() as hooks:
            yield hooks
        process.stdin.close()


def work() -> None:
    """Stand in for training: compute for about 0.1 ms without the GIL, as torch's kernels do."""
    for _ in range(8):
        zlib.crc32(WORK)


def clock_cost_ns() -> float:
    """Return the nanoseconds that reading the clock adds to a timed interval."""
    clock = time.perf_counter_ns
    costs_ns = []
    for _ in range(WARM_UP_STEPS):
        work()
        entering = clock()
        costs_ns.append(clock() - entering)
    return statistics.median(costs_ns)


def time_hooks(hooks: Hooks, steps: int) -> list[float]:
    """Return the cost of each step's hook calls, in us."""
    clock = time.perf_counter_ns
    intervals_ns = 4 * clock_cost_ns()
    costs_us = []
    iterator = hooks.steps(until=WARM_UP_STEPS + steps + 1)
    next(iterator)
    for step in range(WARM_UP_STEPS + steps):
        work()
        entering = clock()
        hooks.enter(Phase.DATA)
        spent = clock() - entering
        work()
        entering = clock()
        hooks.enter(Phase.FORWARD_BACKWARD)
        spent += clock() - entering
        work()
        entering = clock()
        hooks.enter(Phase.OPTIMIZER)
        hooks.report(loss=2.5, grad_norm=0.7, tokens=4096)
        spent += clock() - entering
        work()
        entering = clock()
        next(iterator)
        spent += clock() - entering
        if step >= WARM_UP_STEPS:
            costs_us.append((spent - intervals_ns) / 1000)
    return costs_us


def time_calls(call: Callable[[], object]) -> list[float]:
    """Return the cost of each of many calls, in us."""
    clock = time.perf_counter_ns
    interval_ns = clock_cost_ns()
    costs_us = []
    for _ in range(HEARTBEATS):
        work()
        entering = clock()
        call()
        costs_us.append((clock() - entering - interval_ns) / 1000)
    return costs_us


def time_nvrx_heartbeats() -> list[float]:
    """Return the cost of each heartbeat of the NVIDIA Resiliency Extension, in us."""
    fault_tolerance: Any = importlib.import_module("nvidia_resiliency_ext.fault_tolerance")
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/monitor.sock"
        os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = socket
        server = fault_tolerance.RankMonitorServer.run_in_subprocess(
            cfg=fault_tolerance.FaultToleranceConfig(),
            ipc_socket_path=socket,
            is_restarter_logger=False,
            mp_ctx=multiprocessing.get_context("spawn"),
        )
        try:
            client = fault_tolerance.RankMonitorClient()
            client.init_workload_monitoring()
            costs_us = time_calls(client.send_heartbeat)
            client.shutdown_workload_monitoring()
        finally:
            server.terminate()
            server.join()
    return costs_us


def percentiles(costs_us: list[float]) -> Percentiles:
    ordered = sorted(costs_us)
    return {
        "p50_us": round(ordered[len(ordered) // 2], 2),
        "p99_us": round(ordered[len(ordered) * 99 // 100], 2),
    }


def measure_peers() -> dict[str, Percentiles]:
    if importlib.util.find_spec("nvidia_resiliency_ext") is None:
        print("nvidia_resiliency_ext is not installed: no peer to compare with", file=sys.stderr)
        return {}
    return {"nvrx_send_heartbeat": percentiles(time_nvrx_heartbeats())}


def time_updates(folder: Path, rank: int, ranks: int) -> None:
    """Print the percentiles of should_update() in a rank, after enough norms to compare with, and of one collective."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    hooks, norm = Hooks.unattached(), torch.tensor(0.7)
    numbers = torch.zeros(4, dtype=torch.float64)
    for _ in range(WARM_UP_STEPS):
        hooks.should_update(norm)
    calls: dict[str, Callable[[], object]] = {
        f"should_update(), ranks on gloo: {ranks}": lambda: hooks.should_update(norm),
        f"all_reduce() of 4 numbers, ranks on gloo: {ranks}": lambda: dist.all_reduce(numbers),
    }
    print(json.dumps({name: percentiles(time_calls(call)) for name, call in calls.items()}))
    dist.destroy_process_group()


def measure_updates(ranks: int) -> dict[str, Percentiles]:
    """Return what the first of some ranks has measured."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        command = [sys.executable, __file__, "--updates", folder, str(ranks)]
        processes = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(ranks)
        ]
        first, *_ = [process.communicate()[0] for process in processes]
    found: dict[str, Percentiles] = json.loads(first)
    return found


def measure(rounds: int, steps: int) -> Percentiles:
    """Return the percentiles of the quietest round."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder, attached(Path(folder)) as hooks:
        found = [percentiles(time_hooks(hooks, steps)) for _ in range(rounds)]
    return min(found, key=lambda one: one["p99_us"])


def hook_threads_cpu_s() -> float:
    """Return the CPU time that the hooks' own threads have taken so far."""
    threads = [thread.ident for thread in threading.enumerate() if thread.name.startswith("holdfast-")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in threads if ident is not None)


def measure_reporter() -> float:
    """Return the share of a core that the hooks' threads take while a rank trains at PACED_STEPS_PER_S."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    value = torch.ones(1024)
    with tempfile.TemporaryDirectory(prefix="hf-") as folder, attached(Path(folder)) as hooks:
        for step in hooks.steps(until=2 * PACED_STEPS):
            if step == PACED_STEPS:  # groups and modules are reported by now; each further step is alike
                began_s, began_cpu_s = time.perf_counter(), hook_threads_cpu_s()
            hooks.enter(Phase.FORWARD_BACKWARD)
            for _ in range(2):
                dist.all_reduce(value)
            hooks.enter(Phase.OPTIMIZER)
            hooks.report(loss=2.5, grad_norm=0.7, tokens=4096)
            time.sleep(1 / PACED_STEPS_PER_S)
        ratio = (hook_threads_cpu_s() - began_cpu_s) / (time.perf_counter() - began_s)
    dist.destroy_process_group()
    return ratio


def show(
    own: Percentiles, reporter_core_ratio: float, updates: dict[str, Percentiles], peers: dict[str, Percentiles]
) -> None:
    table = Table(title="Cost on the training thread per step")
    for heading in ("", "p50 (us)", "p99 (us)"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("Holdfast, all hook calls", f"{own['p50_us']:.2f}", f"{own['p99_us']:.2f}")
    table.add_row("ceiling", f"{P50_CEILING_US:.2f}", f"{P99_CEILING_US:.2f}", end_section=True)
    for name, peer in {**updates, **peers}.items():
        table.add_row(name, f"{peer['p50_us']:.2f}", f"{peer['p99_us']:.2f}")
    share = f"{reporter_core_ratio:.2%} of a core (ceiling {REPORTER_CEILING_CORE_RATIO:.2%})"
    Console().print(table, f"Hooks' own threads at {PACED_STEPS_PER_S} steps/s: {share}", sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=20, help="rounds; the quietest counts (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="steps per round (default: %(default)s)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--updates", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return 0
    if arguments.updates:
        folder, ranks, rank = arguments.updates
        time_updates(Path(folder), int(rank), int(ranks))
        return 0
    # The cost on the training thread comes first, because importing torch makes every process a little slower.
    own, peers, reporter_core_ratio = measure(arguments.rounds, arguments.steps), measure_peers(), measure_reporter()
    updates = {**measure_updates(1), **measure_updates(2)}
    show(own, reporter_core_ratio, updates, peers)
    if arguments.json:
        print(
            json.dumps(
                {**own, "reporter_core_ratio": round(reporter_core_ratio, 5), "updates": updates, "peers": peers}
            )
        )
    broken = own["p50_us"] > P50_CEILING_US or own["p99_us"] > P99_CEILING_US
    return int(broken or reporter_core_ratio > REPORTER_CEILING_CORE_RATIO)


if __name__ == "__main__":
    sys.exit(main())
