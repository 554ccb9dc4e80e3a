"""Puts a daemon together and runs it until a signal ends it."""

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from typing import Any

from prometheus_client.registry import CollectorRegistry

from holdfast_base import metrics_server, redis_client
from holdfast_base.files import make_run_directory
from holdfast_daemon.clock import Clock
from holdfast_daemon.console.starting import start_console
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_daemon.control import control_server as control
from holdfast_daemon.daemon_options import DaemonOptions
from holdfast_daemon.history.history_writer import HistoryWriter
from holdfast_daemon.incidents.node_file import NodeFile
from holdfast_daemon.leadership.known_runs import Runs
from holdfast_daemon.leadership.lease_keeper import LeaseKeeper
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_daemon.notify.run_notifier import Notifiers
from holdfast_daemon.run_metrics import DaemonCollector
from holdfast_proto.endpoint import write_endpoint
from holdfast_proto.exit_codes import ExitCode


def main(options: DaemonOptions) -> int:
    """Run a daemon; return its exit code: 0 after SIGTERM or SIGINT, 78 if a setting is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s daemon %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(_serve(options))
    except (ValueError, OSError) as error:
        print(f"holdfast daemon: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    return ExitCode.SUCCESS


async def _serve(options: DaemonOptions) -> None:
    _raise_descriptor_limit()
    make_run_directory(options.directory, share=options.share_group)
    client = redis_client.connect(options.store_url, options.store_password_file)
    keeper = LeaseKeeper(
        lambda: redis_client.connect_blocking(options.store_url, options.store_password_file), options.lease_s
    )
    clock = Clock()
    registry = CollectorRegistry(auto_describe=True)
    ticks = TickMetrics(registry)
    notifiers, histories = Notifiers(options.directory), HistoryWriter(options.directory)
    node_file = NodeFile(options.directory)

    def shell(run: str) -> RunShell:
        return RunShell(
            client,
            run,
            options,
            clock,
            ticks,
            notifier=notifiers.of(run),
            histories=histories,
            node_file=node_file,
            keeper=keeper,
        )

    runs = Runs(client, shell, ticks, options.store_url)
    registry.register(DaemonCollector(runs, clock))
    metrics = metrics_server.serve(registry, options.metrics_address, options.metrics_port, options.metrics_config)
    watched = WatchedDaemon(
        options=options,
        runs=runs,
        clock=clock,
        ticks=ticks,
        loop=asyncio.get_running_loop(),
        started_unix_s=clock.now(),
    )
    server = await control.serve(control.ControlService(runs, clock, watched), options.control)
    console = start_console(watched)
    write_endpoint(
        options.endpoint_file,
        metrics.port,
        console_port=console.port if console is not None else 0,
        console_address=options.console_address,
        console_tokens=str(options.console_tokens),
        console_scheme="http" if options.console_cert_file is None else "https",
    )
    terminated = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, terminated.set)
    discovery = asyncio.create_task(runs.discover())
    ended = asyncio.create_task(terminated.wait())
    tasks: list[asyncio.Task[Any]] = [discovery, ended]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        await redis_client.end(task)
    if console is not None:
        await asyncio.to_thread(console.close)
    await runs.close()
    await asyncio.to_thread(keeper.close)
    await notifiers.close()
    await server.stop(grace=0.5)
    metrics.close()
    await asyncio.to_thread(histories.close)
    await asyncio.to_thread(node_file.close)
    options.control.unlink(missing_ok=True)
    options.endpoint_file.unlink(missing_ok=True)
    for task in done:
        task.result()  # discovery only ends by an error in it: show that


def _raise_descriptor_limit() -> None:
    """Raise the limit of descriptors as far as possible: clients must not use up those of the store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # the soft limit has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
