"""Puts an agent together and runs it until the run ends or it is told to go."""

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Coroutine
from typing import Any

from prometheus_client import start_http_server
from prometheus_client.registry import CollectorRegistry

from holdfast_agent import processes, record, session
from holdfast_agent.bandwidth import Bandwidth
from holdfast_agent.checkpoint_writer import CheckpointWriter
from holdfast_agent.claim import claim
from holdfast_agent.departure import Departure
from holdfast_agent.known_checkpoints import KnownCheckpoints
from holdfast_agent.locations import SECONDARY, is_url, open_objects
from holdfast_agent.metrics import AgentCollector
from holdfast_agent.node import Node
from holdfast_agent.observer import Observer
from holdfast_agent.options import AgentOptions
from holdfast_agent.orders import Orders
from holdfast_agent.parent_client import WarmParentClient
from holdfast_agent.processes import AgentError
from holdfast_agent.run_checkpoints import RunCheckpoints, open_checkpoints
from holdfast_agent.secondary import Secondary
from holdfast_agent.snapshot_memory import SnapshotMemory
from holdfast_agent.store_link import StoreLink
from holdfast_agent.supervisor import Supervisor
from holdfast_proto import redis_client
from holdfast_proto.checkpoint.errors import CheckpointError, CheckpointUnavailable
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.agent_record_pb2 import AgentRecord

log = logging.getLogger(__name__)

TICK_S = 0.1
PUBLISH_TICKS = 2
SPEC_PATIENCE_S = 30.0
DRAIN_PATIENCE_S = 120.0
LEAVE_PATIENCE_S = 2.0


def main(options: AgentOptions) -> int:
    """Run an agent; return its exit code: 0 if the run finished or stopped as planned, 78 for a wrong setting."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s agent %(levelname)s %(message)s", stream=sys.stderr)
    try:
        return asyncio.run(_serve(options))
    except CheckpointUnavailable as error:
        print(f"holdfast agent: {error}", file=sys.stderr)
        return ExitCode.CHECKPOINTS_UNAVAILABLE
    except (AgentError, CheckpointError, ValueError, OSError) as error:
        print(f"holdfast agent: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION


async def _serve(options: AgentOptions) -> int:
    processes.become_subreaper()
    for directory in (options.node_directory, options.directory / "logs"):
        directory.mkdir(parents=True, exist_ok=True)
    options.runtime_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = record.lock(options.node_directory / "agent.lock")
    link = StoreLink(redis_client.connect(options.store_url, options.store_password_file), options.run, options.node)
    saved = record.load(options.record)
    spec = await _find_spec(link, saved)
    memory = SnapshotMemory(options.shm_directory, options.directory / "slots", spec.run, options.node)
    staging = options.checkpoint_staging or options.node_directory / "checkpoints"
    location = spec.checkpoint_directory
    if not is_url(location):
        location = str(options.directory.joinpath(location))
    bandwidth = Bandwidth(spec.checkpoint_upload_bytes_per_s)
    checkpoints = open_checkpoints(location, staging, spec.checkpoints_kept, bandwidth, run=spec.run)
    known = KnownCheckpoints(location, options.node_directory / "known-checkpoints.json")
    takes_over = saved is not None and saved.instance == spec.instance
    secondary = _open_secondary(spec, checkpoints, bandwidth)
    if not takes_over:
        checkpoints.check_writable()  # of ranks that train already the next checkpoint will tell
        if secondary is not None and not checkpoints.committed() and not checkpoints.histories.records:
            secondary.hand_over(checkpoints.histories)
        if spec.command:  # else somebody else's launcher takes the checkpoints
            claim(checkpoints, known, spec, location)
    writer = CheckpointWriter(
        memory,
        checkpoints,
        spec.run,
        link.emit,
        full_every=options.checkpoint_full_every,
        compression=options.checkpoint_compression,
        writers=spec.ranks_per_node,
        secondary=secondary,
        takes_over=takes_over,
        known=known,
    )
    node = Node(options, spec, link, memory, writer)
    if secondary is not None:
        secondary.start(node.ranks_of_world)
    supervisor = Supervisor(node)
    if saved is not None and takes_over:
        memory.adopt()
        supervisor.adopt(saved)
    else:
        if saved is not None:
            supervisor.sweep(saved)
        memory.remove_all()
    try:
        return await _run(options, node, supervisor)
    finally:
        writer.close()
        os.close(lock)


def _open_secondary(spec: store.RunSpec, primary: RunCheckpoints, bandwidth: Bandwidth) -> Secondary | None:
    if not spec.checkpoints_secondary:
        return None
    remote = open_objects(SECONDARY, spec.checkpoints_secondary, bandwidth=bandwidth)
    kept = spec.checkpoints_secondary_kept or spec.checkpoints_kept
    return Secondary(primary, remote, run=spec.run, kept=kept)


async def _find_spec(link: StoreLink, saved: AgentRecord | None) -> store.RunSpec:
    """Return the run's spec from the store, or from our record if the store is away."""
    deadline = time.monotonic() + SPEC_PATIENCE_S
    while time.monotonic() < deadline:
        spec = await link.load_spec()
        if spec is not None:
            return spec
        if saved is not None and saved.spec.run:
            return saved.spec
        await asyncio.sleep(0.1)
    where = "knows no such run" if link.up else "does not answer"
    raise AgentError(f"the store (--redis) {where} after {SPEC_PATIENCE_S:.0f} s: start the run with `holdfast run`")


async def _run(options: AgentOptions, node: Node, supervisor: Supervisor) -> int:
    metrics_port = _serve_metrics(options, node, supervisor)
    admit = Observer(node, supervisor).admit if node.observes else node.admit
    server = await session.serve(node, options.session_socket, admit)
    orders = Orders(node, supervisor)
    departure = Departure(node, options.preemption_grace_s)
    departure.listen()
    endpoint = {"pid": os.getpid(), "metrics_port": metrics_port, "socket": str(options.session_socket)}
    _write_endpoint(options, endpoint)
    jobs: list[Coroutine[None, None, None]] = [
        node.link.send_events(),
        node.link.receive_commands(supervisor.last_command, orders.handle),
        _tick(node, supervisor),
        node.writer.refresh(),
    ]
    if node.observes:
        log.info("put this before the launcher: %s", options.observed_node.shell_line())
    else:
        jobs.append(supervisor.parent.run(list(node.spec.command)))
    tasks: list[asyncio.Future[Any]] = [asyncio.create_task(job) for job in jobs]
    ends: list[asyncio.Future[Any]] = [asyncio.create_task(departure.due.wait()), orders.finished]
    done, _ = await asyncio.wait([*tasks, *ends], return_when=asyncio.FIRST_COMPLETED)
    order = orders.finished.result() if orders.finished.done() else store.FinishRun(outcome="terminated")
    log.info("ending: %s", order.outcome)
    await _end(node, supervisor, order.patience_s or DRAIN_PATIENCE_S, departure.hurried)
    for job_or_end in (*tasks, *ends):
        await redis_client.end(job_or_end)
    await server.stop(grace=None)
    options.session_socket.unlink(missing_ok=True)
    options.endpoint_file.unlink(missing_ok=True)
    for task in done:
        task.result()  # a job ends by an error of ours alone: show it
    return ExitCode.SUCCESS if order.succeeded else ExitCode.FAILED


async def _tick(node: Node, supervisor: Supervisor) -> None:
    """Let time pass for the ranks and publish the node's state, at once if something has changed."""
    last = time.monotonic()
    ticks = 0
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.changed.wait(), TICK_S)
        now = time.monotonic()
        # If this agent was held up, so was what it would have heard: that time counts for nobody.
        node.pass_time(min(now - last, 2 * TICK_S))
        last = now
        ticks += 1
        if node.changed.is_set() or ticks % PUBLISH_TICKS == 0:
            node.changed.clear()
            supervisor.note_cgroups()
            await node.link.publish_state(node.state(ready=supervisor.parent.is_ready), node.spec)


async def _end(node: Node, supervisor: Supervisor, patience_s: float, hurried: asyncio.Event) -> None:
    """Leave nothing behind: ranks, checkpoints under way, snapshot memory, warm parent."""
    await supervisor.stop()
    written = asyncio.create_task(node.writer.drain(patience_s))
    hurry = asyncio.create_task(hurried.wait())
    await asyncio.wait([written, hurry], return_when=asyncio.FIRST_COMPLETED)
    for task in (written, hurry):
        await redis_client.end(task)
    await node.link.flush(patience_s=2.0)
    node.memory.remove_all()
    await _dismiss(supervisor.parent)
    node.options.parent_socket.unlink(missing_ok=True)
    node.options.record.unlink(missing_ok=True)
    await node.link.withdraw()


async def _dismiss(parent: WarmParentClient) -> None:
    """See the warm parent gone; one that is still importing will not listen."""
    pid, ticks = parent.pid, processes.start_ticks(parent.pid)
    deadline = time.monotonic() + (LEAVE_PATIENCE_S if parent.is_ready else 0.0)
    with contextlib.suppress(OSError):
        await parent.leave()
    while processes.is_alive(pid, ticks) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    if pid and processes.is_alive(pid, ticks):
        processes.kill_session(pid)


def _serve_metrics(options: AgentOptions, node: Node, supervisor: Supervisor) -> int:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(AgentCollector(node, supervisor))
    try:
        server, _ = start_http_server(options.metrics_port, options.metrics_address, registry)
    except OSError as error:
        raise AgentError(
            f"cannot serve metrics on {options.metrics_address}:{options.metrics_port}: {error.strerror}:"
            " choose another --metrics-port (0: any free one)"
        ) from error
    return int(server.server_port)


def _write_endpoint(options: AgentOptions, endpoint: dict[str, object]) -> None:
    temporary = options.endpoint_file.with_suffix(".tmp")
    temporary.write_text(json.dumps(endpoint))
    temporary.rename(options.endpoint_file)
