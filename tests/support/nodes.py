"""A node as an agent puts it together, with a link that also keeps what is emitted."""

from pathlib import Path

import redis.asyncio

from holdfast_agent.checkpoints.writer import CheckpointWriter
from holdfast_agent.node import Node
from holdfast_agent.options import AgentOptions
from holdfast_agent.processes.rank import Rank
from holdfast_agent.reports.store_link import StoreLink
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint import processes
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.redis_client import connect
from holdfast_proto.v1 import store_pb2 as store

RUN = "run"
NODE = "node0"


class RecordingLink(StoreLink):
    """Keeps what is emitted."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        super().__init__(client, RUN, NODE)
        self.emitted: list[store.Event] = []

    def emit(self, event: store.Event) -> None:
        """Keep and queue."""
        super().emit(event)
        self.emitted.append(event)

    def kinds(self) -> list[str | None]:
        """What was emitted, oldest first."""
        return [event.WhichOneof("kind") for event in self.emitted]


class RecordedNode(Node):
    """A node whose link is known to record."""

    link: RecordingLink


def make_node(folder: Path, *, store_url: str = "", command: tuple[str, ...] = ("true",)) -> RecordedNode:
    """Return a node of two ranks that keeps its files in ``folder``; without a URL its store is away."""
    options = AgentOptions(
        run=RUN,
        node=NODE,
        store_url=store_url or f"unix://{folder}/no-store.sock",
        directory=folder / "run",
        runtime_directory=folder,
        shm_directory=folder / "shm",
    )
    for directory in (options.node_directory, options.directory / "logs", options.shm_directory):
        directory.mkdir(parents=True, exist_ok=True)
    spec = store.RunSpec(run=RUN, nodes=2, ranks_per_node=2, command=command, instance="i", checkpoints_kept=2)
    link = RecordingLink(connect(options.store_url))
    memory = SnapshotMemory(options.shm_directory, options.directory / "slots", RUN, NODE)
    checkpoints = CheckpointDirectory(options.directory / "checkpoints", kept=spec.checkpoints_kept)
    writer = CheckpointWriter(memory, checkpoints, RUN, link.emit)
    return RecordedNode(options, spec, link, memory, writer)


def begin(node: Node, generation: int, pids: dict[int, int]) -> None:
    """Enter a generation with one rank per process."""
    order = store.StartGeneration(ranks=len(pids), world_size=len(pids))
    node.begin_generation(generation, order)
    for number, pid in pids.items():
        node.ranks[number] = Rank(number, generation, number, pid, processes.start_ticks(pid))
