"""A node with the parts that an agent gives it, and a link that records events."""

import logging
from pathlib import Path

import redis.asyncio

from holdfast_agent.agent_options import AgentOptions
from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_agent.checkpoints.restorer import CheckpointRestorer
from holdfast_agent.checkpoints.shard_saver import Emit, ShardSaver
from holdfast_agent.commands.command_runner import CommandRunner
from holdfast_agent.commands.node_checks import NodeChecks
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank
from holdfast_agent.rank_messages import RankMessages
from holdfast_agent.rank_supervisor import RankSupervisor
from holdfast_agent.reports.store_link import StoreLink
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base import processes
from holdfast_base.redis_client import StoreOutage, connect
from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.locations import HistoryCheckpoints
from holdfast_checkpoint.store.secondary import Secondary
from holdfast_proto import run_files
from holdfast_proto.exit_codes import PREEMPTION_WARNINGS
from holdfast_proto.v1 import store_pb2 as store
from tests.support.run_keys import KnownKey
from tests.support.snapshots import as_run

RUN = "run"
NODE = "node0"


class RecordingLink(StoreLink):
    """A link that records the events given to it."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        outage = StoreOutage(logging.getLogger(__name__), "no-store.sock", "the agent tries again")
        super().__init__(client, RUN, NODE, outage, KnownKey(RUN))
        self.serve(store.RunSpec(run=RUN, instance="i"))
        self.emitted: list[store.Event] = []

    def emit(self, event: store.Event) -> None:
        """Record an event and queue it."""
        super().emit(event)
        self.emitted.append(event)

    def kinds(self) -> list[str | None]:
        """Return the kinds of the recorded events, oldest first."""
        return [event.WhichOneof("kind") for event in self.emitted]


class RecordedNode(Node):
    """A node with the parts of an agent around it, and a link that records."""

    def __init__(self, options: AgentOptions, spec: store.RunSpec, checkpoints: NodeCheckpoints, link: RecordingLink):
        super().__init__(options, spec, checkpoints.memory, checkpoints.inventory, numbers_start=1)
        self.checkpoints = checkpoints
        self.memory, self.inventory = checkpoints.memory, checkpoints.inventory
        self.saver, self.restorer = checkpoints.saver, checkpoints.restorer
        self.link = link
        self.messages = RankMessages(self, checkpoints, link.emit)

    def supervisor(self) -> RankSupervisor:
        """The supervisor of its processes."""
        return RankSupervisor(self, self.link, self.checkpoints)

    def commands(self, supervisor: RankSupervisor) -> CommandRunner:
        """The runner of its commands."""
        checks = NodeChecks(self, self.link.now_ns)
        return CommandRunner(
            self, supervisor, self.checkpoints, self.link.emit, node_checks=checks, on_state=self.messages.give_start
        )


def agent_options(
    directory: Path, runtime_directory: Path, store_url: str = "", shm_directory: Path = Path("/dev/shm")
) -> AgentOptions:
    """Return settings of an agent of one node."""
    return AgentOptions(
        run=RUN,
        node=NODE,
        store_url=store_url,
        directory=directory,
        runtime_directory=runtime_directory,
        shm_directory=shm_directory,
        address="127.0.0.1",
        metrics_address="127.0.0.1",
        metrics_port=0,
        preemption_grace_s=30.0,
        preemption_warnings=PREEMPTION_WARNINGS,
        checkpoint_full_every=8,
        checkpoint_compression=Compression.AUTO,
    )


def make_node(folder: Path, *, store_url: str = "", command: tuple[str, ...] = ("true",)) -> RecordedNode:
    """Return a node of two ranks that keeps its files in ``folder``; without a URL its store is unreachable."""
    options = agent_options(folder / "run", folder, store_url or f"unix://{folder}/no-store.sock", folder / "shm")
    for directory in (options.node_directory, run_files.logs(options.directory), options.shm_directory):
        directory.mkdir(parents=True, exist_ok=True)
    spec = store.RunSpec(run=RUN, nodes=2, ranks_per_node=2, command=command, instance="i", checkpoints_kept=2)
    link = RecordingLink(connect(options.store_url))
    memory = SnapshotMemory(options.shm_directory, run_files.slots(options.directory), RUN, NODE)
    checkpoints = CheckpointDirectory(options.directory / "checkpoints", kept=spec.checkpoints_kept)
    return RecordedNode(options, spec, node_checkpoints(memory, checkpoints, link.emit), link)


def node_checkpoints(
    memory: SnapshotMemory, primary: HistoryCheckpoints, emit: Emit, secondary: Secondary | None = None
) -> NodeCheckpoints:
    """Return a node's checkpoints, with slots in ``memory`` and with the two places."""
    inventory = CheckpointInventory(as_run(primary), secondary, None, RUN)
    saver = ShardSaver(inventory, memory, emit, full_every=8, compression=Compression.AUTO)
    return NodeCheckpoints(memory, inventory, saver, CheckpointRestorer(inventory, memory))


def begin(node: Node, generation: int, pids: dict[int, int]) -> None:
    """Enter a generation with one rank per process."""
    node.begin_generation(generation, store.StartGeneration(ranks=len(pids), world_size=len(pids)))
    for number, pid in pids.items():
        node.ranks[number] = Rank(number, generation, number, pid, processes.start_ticks(pid))
