"""Puts a daemon together and runs it until it is told to go."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import redis.asyncio
from prometheus_client import start_http_server
from prometheus_client.registry import CollectorRegistry

from holdfast_daemon import control
from holdfast_daemon.clock import Clock
from holdfast_daemon.metrics import DaemonCollector, TurnMetrics
from holdfast_daemon.options import DaemonOptions
from holdfast_daemon.run_shell import RunShell
from holdfast_proto import keys, redis_client
from holdfast_proto.rank_context import EXIT_CONFIGURATION
from holdfast_proto.redis_client import StoreError

log = logging.getLogger(__name__)

DISCOVER_S = 0.25


def main(options: DaemonOptions) -> int:
    """Run a daemon; return its exit code: 0 when it was told to go, 78 if a setting is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s daemon %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(_serve(options))
    except (ValueError, OSError) as error:
        print(f"holdfast daemon: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION
    return 0


async def _serve(options: DaemonOptions) -> None:
    options.directory.mkdir(parents=True, exist_ok=True)
    client = redis_client.connect(options.store_url, options.store_password_file)
    clock = Clock()
    shells: dict[str, RunShell] = {}
    registry = CollectorRegistry(auto_describe=True)
    registry.register(DaemonCollector(shells))
    turns = TurnMetrics(registry)
    port = _serve_metrics(options, registry)
    server = await control.serve(control.ControlService(shells, clock), options.control)
    temporary = options.endpoint_file.with_suffix(".tmp")
    temporary.write_text(json.dumps({"pid": os.getpid(), "metrics_port": port, "name": options.name}))
    temporary.rename(options.endpoint_file)
    terminated = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, terminated.set)

    def make_shell(run: str) -> RunShell:
        return RunShell(client, run, options, clock, turns.observe)

    discovery = asyncio.create_task(_discover(client, shells, make_shell))
    await asyncio.wait([discovery, asyncio.create_task(terminated.wait())], return_when=asyncio.FIRST_COMPLETED)
    for shell in shells.values():
        with contextlib.suppress(StoreError, OSError):
            await shell.stand_down()
    await server.stop(grace=0.5)
    options.control.unlink(missing_ok=True)
    options.endpoint_file.unlink(missing_ok=True)
    if discovery.done():
        discovery.result()  # it ends by an error of ours alone: show it
    discovery.cancel()


async def _discover(
    client: redis.asyncio.Redis, shells: dict[str, RunShell], make_shell: Callable[[str], RunShell]
) -> None:
    """Keep a shell for every run that is registered, for ever. Raises what a shell raises."""
    tasks: dict[str, asyncio.Task[None]] = {}
    while True:
        with contextlib.suppress(StoreError, OSError):  # each shell counts and logs it for its run
            members: Any = await client.smembers(keys.RUNS)
            for run in sorted(name.decode() for name in members):
                if run not in shells:
                    shells[run] = make_shell(run)
                    tasks[run] = asyncio.create_task(shells[run].run())
        for run in [run for run, task in tasks.items() if task.done()]:
            tasks.pop(run).result()
            del shells[run]
        await asyncio.sleep(DISCOVER_S)


def _serve_metrics(options: DaemonOptions, registry: CollectorRegistry) -> int:
    try:
        server, _ = start_http_server(options.metrics_port, options.metrics_address, registry)
    except OSError as error:
        raise OSError(
            f"cannot serve metrics on {options.metrics_address}:{options.metrics_port}: {error.strerror}:"
            " choose another --metrics-port (0: any free one)"
        ) from error
    return int(server.server_port)
