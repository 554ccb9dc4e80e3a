"""A store fails while ranks train: each lost checkpoint gives one line, and the next one is tried."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints
from holdfast_proto.v1 import store_pb2 as store
from tests.support.nodes import RUN, node_checkpoints
from tests.support.object_places import Place
from tests.support.snapshots import Snapshots

RANKS = 2
PATIENCE_S = 60.0


class Node:
    """A node with both ranks of its run."""

    def __init__(self, folder: Path, place: Place, snapshots: Snapshots) -> None:
        for name in ("shm", "slots"):
            (folder / name).mkdir()
        self.memory = SnapshotMemory(folder / "shm", folder / "slots", RUN, "node0")
        checkpoints = StagedCheckpoints(place.open(), folder / "staging", 2)
        checkpoints.check_writable()
        self.events: list[store.Event] = []
        self.checkpoints = node_checkpoints(self.memory, checkpoints, self.events.append)
        self.saver, self.inventory = self.checkpoints.saver, self.checkpoints.inventory
        self._snapshots = snapshots

    async def take(self, step: int) -> list[str]:
        """Let both ranks pin a snapshot; return the reasons of failure, if the checkpoint failed."""
        self.events.clear()
        for rank in range(RANKS):
            slot = self.memory.grant(rank, 1 << 16, RANKS).paths[step // 10 % 2]
            self._snapshots.fill(slot, rank, step)
            self.saver.schedule(rank, step, RANKS)
        await self.saver.drain(PATIENCE_S)
        return [event.checkpoint_failed.reason for event in self.events if event.HasField("checkpoint_failed")]


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def node(tmp_path: Path, place: Place, snapshots: Snapshots) -> Iterator[Node]:
    made = Node(tmp_path, place, snapshots)
    yield made
    made.checkpoints.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("Connection refused"), "Connection refused: check that the store can be reached from this node"),
        (PermissionError("Forbidden"), "access denied: check the credentials of memory:// and their rights"),
        (FileNotFoundError("NoSuchBucket"), "no such bucket or folder: create it or correct --checkpoints"),
    ],
)
async def test_unreachable_store_fails_a_checkpoint_in_one_line_and_the_next_is_written(
    error: Exception, reason: str, node: Node, place: Place
) -> None:
    assert await node.take(10) == []
    place.files.fails = lambda _number, method: error if method == "pipe_file" else None
    for step in (20, 30):
        assert await node.take(step) == [f"--checkpoints {place.url}: {reason}"]
    place.files.fails = lambda _number, _method: None
    assert await node.take(40) == []
    assert node.inventory.committed == [10, 40]
    assert not any("step-00000020" in name or "step-00000030" in name for name in place.names())


async def test_store_that_becomes_unreachable_between_shard_and_manifest_leaves_the_last_checkpoint(
    node: Node, place: Place
) -> None:
    assert await node.take(10) == []
    committed = place.open().manifests()

    def away_once_a_shard_is_there(_number: int, _method: str) -> Exception | None:
        return OSError("reset by peer") if "step-00000020/rank-00000.shard" in place.files.puts else None

    place.files.fails = away_once_a_shard_is_there
    (reason,) = await node.take(20)
    assert "reset by peer" in reason
    place.files.fails = lambda _number, _method: None
    assert place.open().manifests() == committed
    assert await node.take(30) == []
    assert node.inventory.committed == [10, 30]
