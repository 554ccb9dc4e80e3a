"""Slots that are pinned after their shards are written, and how they come free."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast_agent.snapshots import held_slots
from holdfast_proto.snapshot import Slot
from tests.support.coroutines import until
from tests.support.nodes import RecordedNode, make_node

if TYPE_CHECKING:
    from tests.support.snapshots import Snapshots

PATIENCE_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RecordedNode]:
    node = make_node(tmp_path)
    yield node
    node.checkpoints.close()


def pin(node: RecordedNode, snapshots: "Snapshots", rank: int, step: int) -> Path:
    """Let a rank pin a snapshot in its first slot."""
    path = node.memory.grant(rank, 1 << 16, ranks_on_node=2).paths[0]
    return snapshots.fill(path, rank, step)


def is_held(path: Path) -> bool:
    with Slot(path) as slot:
        return slot.header.written


async def test_a_slot_is_held_when_its_shard_is_written_and_not_written_again(
    node: RecordedNode, snapshots: "Snapshots"
) -> None:
    slot = pin(node, snapshots, 0, 10)
    for _ in range(2):
        node.saver.schedule(0, 10, world_size=1)
        await node.saver.drain(PATIENCE_S)
        node.saver.schedule_pinned(1, world_size=1)
    assert node.link.kinds() == ["checkpoint_committed"]
    assert is_held(slot)


async def test_slots_come_free_without_a_command_although_the_checkpoint_lacks_a_shard(
    node: RecordedNode, snapshots: "Snapshots", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_slots, "RELEASE_PATIENCE_S", 0.1)
    slot = pin(node, snapshots, 0, 10)
    node.saver.schedule(0, 10, world_size=2)
    await node.saver.drain(PATIENCE_S)
    await until(lambda: not Slot(slot).header.persist, "it is released")
    assert node.inventory.committed == []


async def test_the_time_of_all_slots_of_a_step_begins_with_the_last_shard(
    node: RecordedNode, snapshots: "Snapshots", monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [pin(node, snapshots, rank, 10) for rank in range(2)]
    monkeypatch.setattr(held_slots, "RELEASE_PATIENCE_S", 60.0)
    node.saver.held.hold(0, 10, took_s=0.0)
    node.saver.held.hold(1, 10, took_s=0.0)
    monkeypatch.setattr(held_slots, "RELEASE_PATIENCE_S", 0.0)
    node.saver.held.hold(0, 11, took_s=0.0)  # that of another step is its own
    assert all(map(is_held, slots))
    node.saver.held.hold(1, 10, took_s=0.0)
    await until(lambda: not any(map(is_held, slots)), "both are released")


async def test_a_slot_of_a_checkpoint_that_fails_comes_free_likewise(
    node: RecordedNode, snapshots: "Snapshots", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_slots, "RELEASE_PATIENCE_S", 0.1)
    (tmp_path / "run" / "checkpoints").write_text("in the way of the folder")
    slot = pin(node, snapshots, 0, 10)
    node.saver.schedule(0, 10, world_size=1)
    await node.saver.drain(PATIENCE_S)
    assert node.link.kinds() == ["checkpoint_failed"]
    await until(lambda: not Slot(slot).header.persist, "it is released")


async def test_an_agent_that_finds_slots_held_lets_go_of_them_in_time(
    node: RecordedNode, snapshots: "Snapshots", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_slots, "RELEASE_PATIENCE_S", 0.1)
    slot = pin(node, snapshots, 0, 10)
    node.memory.mark_written(0, 10)
    node.saver.schedule_pinned(0, world_size=2)
    await until(lambda: not Slot(slot).header.persist, "it is released")
    assert node.link.emitted == []


async def test_what_is_committed_need_not_be_held_for_the_next_generation(
    node: RecordedNode, snapshots: "Snapshots"
) -> None:
    slot = pin(node, snapshots, 0, 10)
    node.saver.schedule(0, 10, world_size=1)
    await node.saver.drain(PATIENCE_S)
    node.saver.schedule_pinned(0, world_size=1)  # as when a rank has ended
    assert not Slot(slot).header.persist
