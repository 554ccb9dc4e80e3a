"""Puts an agent together, adopts what an earlier agent has left, and decides the exit code."""

import asyncio
import errno
import logging
import os
import sys
import time
from pathlib import Path

from prometheus_client.registry import CollectorRegistry

from holdfast_agent.agent import Agent
from holdfast_agent.agent_options import AgentOptions
from holdfast_agent.checkpoints.claim import claim
from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_agent.checkpoints.restorer import CheckpointRestorer
from holdfast_agent.checkpoints.shard_saver import ShardSaver
from holdfast_agent.node import Node
from holdfast_agent.node_metrics import AgentCollector
from holdfast_agent.processes import agent_record
from holdfast_agent.processes.rank_command import launcher_problem, start_problem, torch_problem
from holdfast_agent.rank_supervisor import RankSupervisor, end_marked, sweep
from holdfast_agent.replicas.replica_service import open_replicas
from holdfast_agent.reports.store_link import StoreLink
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base import metrics_server, processes, redis_client
from holdfast_base.files import make_private_directory, make_run_directory
from holdfast_base.processes import AgentError
from holdfast_base.redis_client import StoreOutage
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable
from holdfast_checkpoint.store.locations import SECONDARY, is_url, open_objects
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints, open_checkpoints
from holdfast_checkpoint.store.secondary import Secondary
from holdfast_proto import run_files
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.agent_record_pb2 import AgentRecord

log = logging.getLogger(__name__)

SPEC_PATIENCE_S = 30.0

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


class Startup:
    """Decides the exit code of an agent that ends because of an error."""

    def __init__(self) -> None:
        self.is_alone = True
        """Whether no agent of this run was on this node before, and no rank that one has left is alive."""

    def done(self) -> None:
        """Note that the agent serves: ranks may connect, or be started, from now on."""
        self.is_alone = False

    def exit_code(self, error: Exception) -> ExitCode:
        """Return the exit code for ``error``. After 66 and 78 `holdfast run` starts no other agent.

        If ranks may be alive, or if the machine is short of a resource, another start is needed, or may succeed.
        """
        is_short = isinstance(error, OSError) and error.errno in _SHORTAGE
        if not self.is_alone or is_short:
            return ExitCode.FAILED
        is_unavailable = isinstance(error, CheckpointUnavailable)
        return ExitCode.CHECKPOINTS_UNAVAILABLE if is_unavailable else ExitCode.CONFIGURATION


def main(options: AgentOptions) -> int:
    """Run an agent; return its exit code.

    0: the run finished or stopped as planned. 66: its checkpoints cannot be used now.
    78: a setting is wrong. 1: any other end. With 66 and 78 no rank was started.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s agent %(levelname)s %(message)s", stream=sys.stderr)
    startup = Startup()
    try:
        return asyncio.run(_serve(options, startup))
    except (AgentError, CheckpointError, ValueError, OSError) as error:
        print(f"holdfast agent: {error}", file=sys.stderr)
        return startup.exit_code(error)
    except Exception as error:
        log.exception("unexpected error")
        print(f"holdfast agent: unexpected error, its ranks continue: {error!r}", file=sys.stderr)
        return ExitCode.FAILED


async def _serve(options: AgentOptions, startup: Startup) -> int:
    processes.become_subreaper()
    for directory in (options.directory, options.node_directory, run_files.logs(options.directory)):
        make_run_directory(directory, share=options.share_group)
    make_private_directory(options.runtime_directory, "--runtime-directory")
    startup.is_alone = not options.record.exists()
    lock = agent_record.lock(options.node_directory / "agent.lock")
    link = _link(options)
    saved = agent_record.load(options.record)
    spec = await _find_spec(link, saved, options)
    memory = SnapshotMemory(options.shm_directory, run_files.slots(options.directory), spec.run, options.node)
    location = _location(options, spec)
    bandwidth = Bandwidth(spec.checkpoint_upload_bytes_per_s)
    staging = options.checkpoint_staging or options.node_directory / "checkpoints"
    place = open_checkpoints(location, staging, spec.checkpoints_kept, bandwidth, run=spec.run)
    known = KnownCheckpoints(location, options.node_directory / "known-checkpoints.json")
    takes_over = saved is not None and saved.instance == spec.instance
    left = saved.ranks if saved is not None else ()
    startup.is_alone = not takes_over and not any(processes.is_alive(rank.pid, rank.start_ticks) for rank in left)
    secondary = _open_secondary(spec, place, bandwidth)
    if not takes_over:
        end_marked(spec, options.node)
        _expect_startable(spec, options.node)
        place.present.check_writable()  # if ranks train already, their next checkpoint shows it
        _begin_checkpoints(spec, place, secondary, known, location)
    inventory = CheckpointInventory(place, secondary, known, spec.run, takes_over=takes_over)
    saver = ShardSaver(
        inventory,
        memory,
        link.emit,
        full_every=options.checkpoint_full_every,
        compression=options.checkpoint_compression,
        writers=spec.ranks_per_node,
    )
    numbers_start = link.serve(spec, await link.now_ns(), saved.numbers_start if saved is not None else 0)
    node = Node(options, spec, memory, inventory, numbers_start)
    if node.replicates:
        node.replicas = open_replicas(options, spec, memory, node.errors)
    checkpoints = NodeCheckpoints(memory, inventory, saver, CheckpointRestorer(inventory, memory), node.replicas)
    if secondary is not None:
        secondary.start(node.ranks_of_world)
    agent = Agent(node, link, checkpoints, RankSupervisor(node, link, checkpoints))
    collector = AgentCollector(node, link, checkpoints, agent.supervisor.parent)
    metrics = _serve_metrics(options, collector)
    try:
        if saved is not None and takes_over:
            checkpoints.adopt()
            agent.supervisor.adopt(saved)
        else:
            if saved is not None:
                sweep(saved)
            checkpoints.remove_snapshots()
            # Commands that are there were given to an earlier agent. The leader repeats those that had no effect.
            agent.supervisor.record.last_command = await link.newest_command()
        startup.is_alone &= not node.ranks
        return await agent.run(metrics.port, startup.done, takes_over=takes_over)
    finally:
        metrics.close()
        checkpoints.close()
        os.close(lock)


def _link(options: AgentOptions) -> StoreLink:
    outage = StoreOutage(log, options.store_url, "the agent tries again; ranks that train continue")
    client = redis_client.connect(options.store_url, options.store_password_file)
    return StoreLink(client, options.run, options.node, outage, RunKeyFile(options.run_key, options.run))


def _location(options: AgentOptions, spec: store.RunSpec) -> str:
    """Return the URL of the checkpoints, or their folder with its absolute path."""
    location = spec.checkpoint_directory
    return location if is_url(location) else str(options.directory.joinpath(location))


def _expect_startable(spec: store.RunSpec, node: str) -> None:
    """Raise AgentError if this node cannot start the run's command. It may exist on the other nodes only."""
    problem = spec.command and (
        launcher_problem(spec.command) or start_problem(spec.command, Path.cwd()) or torch_problem()
    )
    if problem:
        raise AgentError(f"node {node} cannot train: {problem}")


def _begin_checkpoints(
    spec: store.RunSpec, place: RunCheckpoints, secondary: Secondary | None, known: KnownCheckpoints, location: str
) -> None:
    """Prepare the places of checkpoints for ranks that are to be started."""
    if secondary is not None and not place.committed() and not place.histories.records:
        secondary.hand_over(place.histories)
    if spec.command or spec.restores:  # else another launcher starts the ranks, and they take their own checkpoints
        claim(place, known, spec, location)


def _open_secondary(spec: store.RunSpec, primary: RunCheckpoints, bandwidth: Bandwidth) -> Secondary | None:
    if not spec.checkpoints_secondary:
        return None
    remote = open_objects(SECONDARY, spec.checkpoints_secondary, bandwidth=bandwidth)
    kept = spec.checkpoints_secondary_kept or spec.checkpoints_kept
    return Secondary(primary, remote, run=spec.run, kept=kept)


async def _find_spec(link: StoreLink, saved: AgentRecord | None, options: AgentOptions) -> store.RunSpec:
    """Return the run's spec from the store, or from the last agent's record if the store is unreachable."""
    deadline = time.monotonic() + SPEC_PATIENCE_S
    is_reported = False
    while time.monotonic() < deadline:
        spec = await link.load_spec()
        if spec is not None:
            return spec
        if saved is not None and saved.spec.run:
            if link.spec_problem:
                log.error("the agent continues with the run that it knows: %s", link.spec_problem)
            return saved.spec
        if link.up and not is_reported:
            problem = link.spec_problem or f"Redis at {options.store_url} knows no run {options.run} yet"
            log.warning("%s: the agent waits for it", problem)
            is_reported = True
        await asyncio.sleep(0.1)
    if link.spec_problem:
        raise AgentError(link.spec_problem)
    if link.up:
        raise AgentError(
            f"Redis at {options.store_url} knows no run {options.run} after {SPEC_PATIENCE_S:.0f} s: publish it with"
            " `holdfast publish`, or correct --run"
        )
    raise AgentError(
        f"Redis at {options.store_url} does not answer after {SPEC_PATIENCE_S:.0f} s: start it, or correct --redis"
    )


def _serve_metrics(options: AgentOptions, collector: AgentCollector) -> metrics_server.MetricsServer:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector)
    server = metrics_server.serve(registry, options.metrics_address, options.metrics_port, options.metrics_config)
    collector.server = server
    return server
