import asyncio
from pathlib import Path

import pytest

from holdfast_agent.checkpoints import restore_sources
from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import Slot
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import end, until
from tests.support.nodes import RUN, make_node
from tests.support.snapshots import Snapshots, as_run


@pytest.fixture
def committed(snapshots: Snapshots, tmp_path: Path) -> CheckpointDirectory:
    """The node's checkpoints: one of two ranks."""
    checkpoints = CheckpointDirectory(tmp_path / "run" / "checkpoints", kept=2)
    snapshots.commit(checkpoints, 40, world_size=2)
    assert checkpoints.load_manifest(40).run == RUN
    return checkpoints


async def test_world_of_the_same_size_gets_slots_and_the_checkpoint(
    committed: CheckpointDirectory, tmp_path: Path
) -> None:
    node = make_node(tmp_path)
    point = await node.restorer.starting_point(40, range(2), world_size=2, generation=3)
    assert point.checkpoint == node.inventory.local_directory(40) == committed.step_directory(40)
    assert node.inventory.local_directory(41) is None
    assert sorted(point.slots) == [0, 1]
    for rank, path in point.slots.items():
        with Slot(path) as slot:
            assert (slot.header.rank, slot.header.step, slot.header.generation) == (rank, 40, 3)


async def test_world_of_another_size_gets_the_checkpoint_alone(committed: CheckpointDirectory, tmp_path: Path) -> None:
    node = make_node(tmp_path)
    slots = await node.restorer.starting_point(40, range(2), world_size=2, generation=2)
    assert node.memory.complete_steps(0) == [40]
    point = await node.restorer.starting_point(40, range(1), world_size=3, generation=3)
    assert (point.slots, point.checkpoint) == ({}, committed.step_directory(40))
    assert node.memory.complete_steps(0) == []  # of the other layout
    assert [path.exists() for path in slots.slots.values()] == [True, False]


async def test_damaged_checkpoint_is_reported_before_ranks_of_another_world_start(
    committed: CheckpointDirectory, tmp_path: Path
) -> None:
    shard_path(committed.step_directory(40), 1).write_bytes(b"damaged")
    with pytest.raises(CheckpointUnreadable, match=r"rank-00001\.shard"):
        await make_node(tmp_path).restorer.starting_point(40, range(3), world_size=3, generation=3)


@pytest.mark.parametrize("takes_over", [False, True])
async def test_unreachable_store_ends_an_agent_at_the_start_and_not_one_whose_ranks_train_already(
    committed: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_over: bool
) -> None:
    def away(_: CheckpointDirectory) -> dict[int, Manifest]:
        raise CheckpointError("--checkpoints s3://bucket/run: no answer")

    monkeypatch.setattr(CheckpointDirectory, "manifests", away)

    def inventory() -> CheckpointInventory:
        return CheckpointInventory(as_run(committed), None, None, RUN, takes_over=takes_over)

    if takes_over:
        assert inventory().committed == []
    else:
        with pytest.raises(CheckpointError, match="no answer"):
            inventory()


async def test_a_node_leaves_looking_to_others_while_its_ranks_train_and_looks_at_once_when_they_do_not(
    committed: CheckpointDirectory, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_sources, "_TURN_S", 0.001)
    inventory = CheckpointInventory(as_run(committed), None, None, RUN)
    trains, asked = True, 0

    def must_look() -> bool:
        nonlocal asked
        asked += 1
        return not trains

    looking = asyncio.create_task(inventory.refresh(lambda _: None, must_look))
    await until(lambda: inventory.is_old, "it leaves looking to others")
    snapshots.commit(committed, 50, world_size=2)
    asked_before = asked
    await until(lambda: asked > asked_before + 2, "it has had several turns")
    assert (inventory.committed, inventory.is_old) == ([40], True)
    trains = False
    await until(lambda: not inventory.is_old, "it has looked")
    assert inventory.committed == [40, 50]
    await end(looking)


async def test_a_node_that_has_left_looking_to_others_looks_before_it_starts_from_a_checkpoint(
    committed: CheckpointDirectory, snapshots: Snapshots, tmp_path: Path
) -> None:
    node = make_node(tmp_path)
    snapshots.commit(committed, 50, world_size=2)
    node.inventory.is_old = True
    start = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_CHECKPOINT, step=50)
    point = await node.checkpoints.starting_point(start, range(2), generation=3)
    assert point.checkpoint == committed.step_directory(50)
