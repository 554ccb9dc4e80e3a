import dataclasses

import pytest

from holdfast_agent.replicas import replica_store
from holdfast_agent.replicas.replica_exchange import ReplicaError
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_agent.snapshots.memory_room import Room
from holdfast_checkpoint.format.durable import NewFile
from holdfast_checkpoint.format.shard_index import index_path
from tests.agent.replicas.conftest import WORLD, Node


def test_shards_are_reported_by_step_and_generation(node: Node) -> None:
    for rank in (3, 0):
        node.save(rank, 10)
        node.save(rank, 20, base=10)
    node.save(1, 20, generation=2)
    assert node.held() == {(10, 1): [0, 3], (20, 1): [0, 3], (20, 2): [1]}
    assert {one.world_size for one in node.store.held()} == {WORLD}
    assert node.store.find(1, 20, generation=1) is None
    assert node.store.find(1, 20, generation=2) == node.store.find(1, 20)
    assert [path.stat().st_mode & 0o777 for path in (node.root, node.root.parent)] == [0o700, 0o700]


def test_a_shard_counts_only_with_the_base_that_it_was_built_on(node: Node) -> None:
    node.save(0, 10)
    node.save(0, 20, base=10)
    orphan = node.write(0, 30, base=10)
    node.save(0, 10, generation=2)  # the run has gone back, and made another state of this step
    assert node.held() == {(10, 2): [0]}
    assert not node.store.note(orphan)
    assert node.files() == ["step-00000010/rank-00000.json", "step-00000010/rank-00000.shard"]


def test_the_next_shard_builds_on_the_newest_full_one_until_enough_do(node: Node) -> None:
    assert node.store.base_for(0, WORLD, 2) is None
    node.save(0, 10)
    assert [node.store.base_for(0, WORLD, most) for most in (0, 1)] == [None, 10]
    assert node.store.base_for(0, WORLD + 1, 1) is None
    for step in (20, 30):
        assert node.store.base_for(0, WORLD, 2) == 10
        node.save(0, step, base=10)
        node.store.keep(step, step + 10)
    # Those that were dropped count as well.
    assert node.held() == {(10, 1): [0], (30, 1): [0]}
    assert node.store.base_for(0, WORLD, 2) is None
    node.save(0, 40)
    assert node.store.base_for(0, WORLD, 2) == 40


@pytest.mark.parametrize(
    ("kept_step", "wanted_step", "left"),
    [
        (None, 10, [10, 20, 30, 40]),
        (20, 40, [10, 20, 40]),
        (40, 50, [40]),
        (30, 60, [10, 30]),
        (None, 50, []),
    ],
)
def test_old_steps_are_dropped_but_not_what_others_build_on(
    kept_step: int | None, wanted_step: int, left: list[int], node: Node
) -> None:
    node.save(0, 10)
    node.save(0, 20, base=10)
    node.save(0, 30, base=10)
    node.save(0, 40)
    node.store.keep(kept_step, wanted_step)
    assert [step for step, _ in node.held()] == left
    assert node.steps() == left


@pytest.mark.parametrize(("step", "left"), [(20, [10, 20]), (15, [10]), (-1, [])])
def test_a_run_that_goes_back_leaves_no_later_step(step: int, left: list[int], node: Node) -> None:
    node.save(0, 10)
    node.save(0, 20, base=10)
    index = node.write(0, 30, base=10)
    node.store.drop_after(step)
    assert not node.store.note(index)
    assert [step for step, _ in node.held()] == left
    assert node.steps() == left


def test_a_shard_that_arrives_while_the_run_goes_back_is_not_kept(node: Node, partner: Node) -> None:
    index = node.save(0, 10)

    def fill(new: NewFile) -> None:
        new.write(node.shard(0, 10).read_bytes())
        partner.store.drop_after(5)

    with pytest.raises(ReplicaError, match=r"rank 0 and step 10 is not stored: .*: No such file"):
        partner.store.add(index, fill)
    assert (partner.held(), partner.files()) == ({}, [])


def test_a_shard_of_an_earlier_generation_replaces_no_later_one(node: Node, partner: Node) -> None:
    old = node.save(0, 10)
    data = node.shard(0, 10).read_bytes()
    partner.save(0, 10, generation=2)
    with pytest.raises(ReplicaError, match="is here of generation 2, later than 1"):
        partner.store.add(old, lambda new: new.write(data))
    assert partner.held() == {(10, 2): [0]}


def test_what_an_earlier_agent_left_is_taken_over_without_partial_files(node: Node) -> None:
    for rank in range(4):
        node.save(rank, 10)
        node.save(rank, 20, base=10)
    directory = node.store.directory(20)
    index_path(directory, 1).unlink()
    node.shard(2, 20).write_bytes(node.shard(2, 20).read_bytes()[:-1])
    index_path(node.store.directory(10), 3).write_bytes(b"{")
    (directory / "rank-00000.shard.host.1.1.tmp").write_bytes(b"part")
    foreign = dataclasses.replace(node.store.find(0, 20) or pytest.fail("it is there"), run="other", rank=5)
    index_path(directory, 5).write_bytes(foreign.encode())
    (directory / "rank-00005.shard").write_bytes(node.shard(0, 20).read_bytes())

    (node.root / "old.0").mkdir()
    (node.root / "old.0" / "rank-00000.shard").write_bytes(b"removed")
    node.store = ReplicaStore(node.root, node.shm, node.store.run)
    assert node.held() == {}
    node.store.adopt()

    assert node.held() == {(10, 1): [0, 1, 2], (20, 1): [0]}
    assert len(node.files()) == 8
    assert node.store.base_for(0, WORLD, 1) is None  # one builds on it
    node.expect_state(0, 20)


def test_nothing_to_take_over_is_no_error(node: Node) -> None:
    node.store.adopt()
    node.save(0, 10)
    node.store.remove_all()
    assert (node.held(), node.root.exists()) == ({}, False)
    node.store.adopt()


def test_a_folder_of_another_user_or_behind_a_link_is_left_alone(node: Node) -> None:
    index = node.save(0, 10)
    real = node.root.parent.rename(node.shm / "elsewhere")
    node.root.parent.symlink_to(real)
    node.store.adopt()
    node.store.remove_all()
    assert index_path(real / "replicas" / "step-00000010", index.rank).exists()


def test_a_damaged_index_is_dropped_with_what_builds_on_its_shard(node: Node) -> None:
    node.save(0, 10)
    node.save(0, 20, base=10)
    index_path(node.store.directory(10), 0).write_bytes(b"{}")
    assert node.store.find(0, 10) is None
    assert (node.held(), node.files()) == ({}, [])


def test_shards_leave_memory_to_slots_and_to_shards_that_arrive(
    node: Node, partner: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = node.save(0, 10)
    data = node.shard(0, 10).read_bytes()
    reserve = partner.store.room_bytes()
    rooms: list[int] = []
    free = 1 << 50
    monkeypatch.setattr(replica_store, "memory_room", lambda _: Room(free, "memory", "raise --shm-directory"))
    before = partner.store.room_bytes()
    assert reserve >= 0
    assert 0 < free - before <= 1 << 30

    def fill(new: NewFile) -> None:
        rooms.append(partner.store.room_bytes())
        new.write(data)

    partner.store.add(index, fill)
    assert rooms == [before - index.shard_bytes]
    assert partner.store.room_bytes() == before

    free = len(data) - 1
    with pytest.raises(ReplicaError, match=rf"no room for .* {len(data)} bytes: memory has 0 .* --shm-directory"):
        node.store.add(dataclasses.replace(index, step=11), fill)
    assert len(rooms) == 1
