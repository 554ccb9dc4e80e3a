"""The leader's command to write replica snapshots as a checkpoint: a world of another size is to start from it."""

import asyncio
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_agent.replicas.replica_exchange import ReplicaError
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_checkpoint.format.shard_index import load_index, shard_path
from holdfast_checkpoint.format.slot_shard import read_shard, write_replica
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import Meta, Slot
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.commands.test_command_runner import GENERATION, Desk
from tests.agent.commands.test_replicate_command import ReplicaDesk
from tests.checkpoint.conftest import contents
from tests.support.coroutines import until
from tests.support.nodes import RUN, node_checkpoints
from tests.support.snapshots import Snapshots

STEP = 20
WORLD = 4


def tensors(rank: int) -> dict[str, bytes]:
    return {"own": b"of rank %d" % rank, "shared": b"the same on all"}


class HoldingDesk(ReplicaDesk):
    """A leader's place for a node whose ranks have ended, and that holds replica snapshots of a world of four."""

    def __init__(self, folder: Path, snapshots: Snapshots, committed: CheckpointDirectory) -> None:
        super().__init__(folder, snapshots)
        node = self.node
        node.ranks.clear()
        parts = node_checkpoints(node.memory, committed, node.link.emit)
        node.checkpoints = dataclasses.replace(parts, replicas=self.service)
        self.committed = committed

    def hold(self, *ranks: int) -> None:
        """Make replica snapshots, in which rank 0 stores one tensor for all."""
        replicas = self.service.replicas
        for rank in ranks:
            path = self._snapshot(rank)
            assert replicas.note(write_replica(path, replicas.directory(STEP), run=RUN, world_size=WORLD))
            path.unlink()

    def keep(self, *ranks: int, generation: int = GENERATION) -> None:
        """Leave snapshots in the slots of ranks."""
        for rank in ranks:
            path = self._snapshot(rank, generation)
            granted = self.node.memory.grant(rank, path.stat().st_size, len(ranks)).paths[0]
            with granted.open("r+b") as slot:
                slot.write(path.read_bytes())
            path.unlink()

    def _snapshot(self, rank: int, generation: int = GENERATION) -> Path:
        path = self.snapshots.slot(rank, STEP, generation=generation, tensors=tensors(rank))
        with Slot(path) as slot:
            writers = {"own": None, "shared": 0}
            entries = [dataclasses.replace(entry, writer=writers[entry.name]) for entry in slot.meta().tensors]
            data_bytes = slot.header.data_bytes
            slot.commit(Meta(slot.meta().tree, tuple(entries)), data_bytes=data_bytes, persist=False)
        return path

    async def persist(self, *ranks: int, world_size: int = WORLD) -> None:
        """Give the command, and let it be carried out."""
        await self.begin(*ranks, world_size=world_size)
        await until(lambda: not self.running, "it is carried out")

    async def begin(self, *ranks: int, world_size: int = WORLD) -> None:
        """Give the command."""
        command = store.PersistReplicas(step=STEP, generation=GENERATION, world_size=world_size, ranks=ranks)
        await self.give(persist_replicas=command)

    @property
    def running(self) -> int:
        """Commands that are carried out now."""
        return self.commands._replicas._jobs.running

    @property
    def failures(self) -> list[str]:
        """Reasons of the failures that were reported."""
        failed = [event.checkpoint_failed for event in self.node.link.emitted if event.HasField("checkpoint_failed")]
        assert all(one.step == STEP for one in failed)
        return [one.reason for one in failed]

    def held(self) -> list[int]:
        """Ranks whose replica snapshots are here."""
        return [rank for one in self.service.replicas.held() for rank in one.ranks]

    def slots(self) -> list[str]:
        """Names of the temporary slots."""
        return sorted(path.name for path in self.service.replicas.directory(STEP).glob("*.slot"))


@pytest.fixture
def new_desk(
    folder: Path, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> Iterator[Callable[..., HoldingDesk]]:
    """A function that returns the desk of a node; all nodes have the same folder of checkpoints."""
    desks: list[HoldingDesk] = []

    def make(*ranks: int) -> HoldingDesk:
        place = folder / str(len(desks))
        place.mkdir()
        desks.append(HoldingDesk(place, snapshots, checkpoints))
        desks[-1].hold(*ranks)
        return desks[-1]

    yield make
    for desk in desks:
        desk.service.close()


async def test_the_nodes_together_write_a_checkpoint_with_the_state_of_a_lost_rank(
    new_desk: Callable[..., HoldingDesk], checkpoints: CheckpointDirectory, snapshots: Snapshots
) -> None:
    first, second = new_desk(0, 1, 3), new_desk(2)
    await first.persist(0, 1, 3)
    assert (first.reported, checkpoints.committed()) == ([], [])
    await second.persist(2)
    assert second.reported == ["checkpoint_committed"]
    manifest = checkpoints.load_manifest(STEP)
    assert (manifest.world_size, manifest.generation) == (WORLD, GENERATION)
    directory = checkpoints.step_directory(STEP)
    for rank in range(WORLD):
        slot = snapshots.empty()
        read_shard(directory, rank, slot, generation=GENERATION + 1)
        assert contents(slot) == tensors(rank)
        stored = {tensor.entry.name for tensor in load_index(directory, rank).tensors if tensor.is_stored}
        assert stored == {"own", *(["shared"] if rank == 0 else [])}
    assert (first.slots(), first.held()) == ([], [0, 1, 3])
    point = await first.node.checkpoints.restorer.starting_point(
        STEP, range(2), world_size=2, generation=GENERATION + 1
    )
    assert (point.slots, point.checkpoint) == ({}, directory)  # each shard is verified


async def test_what_is_no_replica_snapshot_is_written_from_memory_if_it_is_of_the_same_generation(
    new_desk: Callable[..., HoldingDesk], checkpoints: CheckpointDirectory, snapshots: Snapshots
) -> None:
    desk = new_desk(0)
    desk.keep(1, 2)
    desk.keep(3, generation=GENERATION - 1)
    await desk.persist(0, 1, 2, 3)
    assert desk.failures == ["this node has no snapshot of rank 3 and step 20"]
    desk.keep(3)
    await desk.persist(0, 1, 2, 3)
    assert checkpoints.committed() == [STEP]
    slot = snapshots.empty()
    read_shard(checkpoints.step_directory(STEP), 2, slot, generation=GENERATION + 1)
    assert contents(slot) == tensors(2)


async def test_a_command_that_is_repeated_is_carried_out_once(new_desk: Callable[..., HoldingDesk]) -> None:
    desk = new_desk(0, 1, 2, 3)
    await desk.begin(0, 1, 2, 3)
    await desk.begin(0, 1, 2, 3)
    assert desk.running == 1
    await until(lambda: not desk.running, "it is carried out")
    desk.service.replicas.drop(0, STEP)  # what is committed needs it no more
    await desk.persist(0, 1, 2, 3)
    assert desk.reported == ["checkpoint_committed"]


@pytest.mark.parametrize(
    ("harm", "reason", "left"),
    [
        ("damage", "the replica snapshot of rank 1 cannot be used: .*rank-00001.shard is damaged", [0]),
        ("drop", "this node has no snapshot of rank 1 and step 20", [0]),
        ("other world", "this node has no snapshot of rank 0 and step 20", [0, 1]),
    ],
)
async def test_each_command_that_fails_is_reported_once(
    new_desk: Callable[..., HoldingDesk], harm: str, reason: str, left: list[int]
) -> None:
    desk = new_desk(0, 1)
    path = shard_path(desk.service.replicas.directory(STEP), 1)
    if harm == "damage":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif harm == "drop":
        desk.service.replicas.drop(1, STEP)
    ranks, world_size = ((0,), 3) if harm == "other world" else ((0, 1), WORLD)
    for commands in (1, 2):
        await desk.persist(*ranks, world_size=world_size)
        assert len(desk.failures) == commands
        assert re.search(reason, desk.failures[0])
    assert (desk.slots(), desk.held()) == ([], left)


@pytest.mark.parametrize(("room", "reported"), [(1, ["checkpoint_committed"]), (0, ["checkpoint_failed"])])
async def test_slots_wait_for_room_that_others_free(
    new_desk: Callable[..., HoldingDesk], monkeypatch: pytest.MonkeyPatch, room: int, reported: list[str]
) -> None:
    desk = new_desk(0, 1, 2, 3)
    used: list[int] = []

    def check_room(replicas: ReplicaStore, nbytes: int) -> None:
        used.append(len(desk.slots()))
        if used[-1] >= room:
            raise ReplicaError("no room for a replica snapshot")

    monkeypatch.setattr(ReplicaStore, "check_room", check_room)
    await desk.persist(0, 1, 2, 3)
    assert (desk.reported, max(used), desk.slots()) == (reported, room, [])


@pytest.mark.parametrize("kind", ["start", "stop"])
async def test_the_next_generation_begins_when_nothing_is_written_any_more(
    new_desk: Callable[..., HoldingDesk], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    waits: list[str] = []
    seen: list[tuple[int, list[str]]] = []

    async def wait(workers: CheckpointWorkers, task: str, **_: object) -> None:
        waits.append(task)
        await asyncio.Event().wait()

    async def move(*_: object) -> None:
        seen.append((desk.running, desk.slots()))

    monkeypatch.setattr(CheckpointWorkers, "run", wait)
    desk = new_desk(0, 1, 2)
    monkeypatch.setattr(desk.supervisor, kind, move)
    await desk.begin(0, 1, 2)
    await until(lambda: len(waits) == 2, "as many work as the node has ranks")
    assert len(desk.slots()) == 2
    start = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_CHECKPOINT, step=STEP)
    await desk.give(
        generation=GENERATION + 1, **({"start": start} if kind == "start" else {"stop": store.StopGeneration()})
    )
    assert (seen, desk.reported) == ([(0, [])], [])


async def test_a_node_that_takes_no_replica_snapshots_has_only_its_memory(folder: Path) -> None:
    desk = Desk(folder)
    await desk.give(
        persist_replicas=store.PersistReplicas(step=STEP, generation=GENERATION, world_size=WORLD, ranks=[0])
    )
    await until(lambda: desk.reported == ["checkpoint_failed"], "it is reported")
    assert desk.node.link.emitted[0].checkpoint_failed.reason == "this node has no snapshot of rank 0 and step 20"
