"""What the hooks cost the training thread per step, with a live reporter and a real agent-side server.

Timed are all hook calls of one step: the turn-around of ``steps()``, three ``enter()`` calls and one
``report()``; no snapshot is due. Exits with 1 if a ceiling is broken.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import holdfast_hooks
from holdfast_hooks import Phase
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1 import session_pb2, session_pb2_grpc
from rich.console import Console
from rich.table import Table

P50_CEILING_US = 5.0
P99_CEILING_US = 20.0
WARM_UP_STEPS = 1000
HEARTBEATS = 2000
WORK = bytes(64 * 1024)


class Agent(session_pb2_grpc.RankAgentServicer):
    """As much of an agent as a rank needs to report to."""

    def Session(  # noqa: N802 - gRPC's name
        self, requests: Iterator[session_pb2.RankMessage], context: grpc.ServicerContext
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
def agent(socket: Path) -> Iterator[None]:
    command = [sys.executable, __file__, "--serve", str(socket)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


def work() -> None:
    """Stand in for training: a quarter of a millisecond, mostly outside the GIL, as torch's kernels are."""
    for _ in range(8):
        zlib.crc32(WORK)


def time_hooks(steps: int) -> list[float]:
    """Return the cost of each step's hook calls, in us."""
    clock = time.perf_counter_ns
    costs_us = []
    with holdfast_hooks.attach() as hooks:
        iterator = hooks.steps(until=WARM_UP_STEPS + steps)
        next(iterator)
        for step in range(WARM_UP_STEPS + steps - 1):
            work()
            t0 = clock()
            hooks.enter(Phase.DATA)
            t1 = clock()
            work()
            t2 = clock()
            hooks.enter(Phase.FORWARD_BACKWARD)
            t3 = clock()
            work()
            t4 = clock()
            hooks.enter(Phase.OPTIMIZER)
            hooks.report(loss=2.5, grad_norm=0.7, tokens=4096)
            t5 = clock()
            work()
            t6 = clock()
            next(iterator)
            t7 = clock()
            if step >= WARM_UP_STEPS:
                costs_us.append((t1 - t0 + t3 - t2 + t5 - t4 + t7 - t6) / 1000)
    return costs_us


def percentiles(costs_us: list[float]) -> dict[str, float]:
    ordered = sorted(costs_us)
    return {
        "p50_us": round(ordered[len(ordered) // 2], 3),
        "p99_us": round(ordered[int(len(ordered) * 0.99)], 3),
    }


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1]=="--serve": serve(sys.argv[2]); sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        f = Path(folder)
        os.environ.update(RankContext(run="bench", generation=0, agent=f"unix:{f}/agent", black_box=f"{f}/box").to_environment())
        with agent(f / "agent"):
            print(percentiles(time_hooks(8000)))
