import errno
import os
import stat
from pathlib import Path

import pytest

from holdfast_agent.checkpoints.restorer import slot_for
from holdfast_agent.snapshots import snapshot_memory
from holdfast_agent.snapshots.memory_room import Room, cgroup_free_bytes, memory_room
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.format.slot_shard import read_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import Slot, SlotState, SnapshotError
from tests.support.snapshots import Snapshots

KIB = 1 << 10
PETABYTE = 1 << 50


@pytest.fixture
def memory(tmp_path: Path) -> SnapshotMemory:
    return new_memory(tmp_path)


def new_memory(tmp_path: Path, node: str = "node-a") -> SnapshotMemory:
    (tmp_path / "shm").mkdir(exist_ok=True)
    return SnapshotMemory(tmp_path / "shm", tmp_path / "run" / "slots", "run", node)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one rank of 64 KiB, but not for two."""
    room = Room(250 * KIB, "/dev/shm", "enlarge it (docker: --shm-size) or set --shm-directory")
    monkeypatch.setattr(snapshot_memory, "memory_room", lambda _: room)


@pytest.fixture
def five_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for five slots of 64 KiB."""

    def room(directory: Path) -> Room:
        used = sum(path.stat().st_size for path in directory.rglob("*.slot"))
        return Room(5 * 64 * KIB - used, "/dev/shm", "")

    monkeypatch.setattr(snapshot_memory, "memory_room", room)


def test_rank_gets_two_private_slots(memory: SnapshotMemory, tmp_path: Path) -> None:
    grant = memory.grant(3, 100 * KIB + 1, ranks_on_node=2)
    directory = tmp_path / "shm" / f"holdfast-{os.geteuid()}-run@node-a"
    assert grant.paths == tuple(directory / f"rank-00003.{number}.slot" for number in range(2))
    assert (grant.on_disk, grant.reason, grant.needed_bytes) == (False, "", 0)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in grant.paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_size == 104 * KIB
        assert path.stat().st_blocks * 512 >= 104 * KIB
    assert memory.slots(3) == list(grant.paths)
    assert memory.slots(4) == []


def test_slots_that_are_large_enough_are_granted_again(memory: SnapshotMemory) -> None:
    first = memory.grant(0, 64 * KIB, ranks_on_node=1)
    assert memory.grant(0, 64 * KIB, ranks_on_node=1) == first
    assert memory.grant(0, 10, ranks_on_node=1) == first


def test_larger_slots_replace_smaller_ones_without_losing_a_snapshot(
    memory: SnapshotMemory, snapshots: Snapshots
) -> None:
    old = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    snapshots.fill(old[0], 0, 7, persist=False)
    new = memory.grant(0, 128 * KIB, ranks_on_node=1).paths
    assert not set(old) & set(new)
    assert [path.exists() for path in old] == [True, False]
    assert memory.complete_steps(0) == [7]
    snapshots.fill(new[0], 0, 8, persist=False)
    assert memory.grant(0, 128 * KIB, ranks_on_node=1).paths == new
    assert memory.complete_steps(0) == [7, 8]
    snapshots.fill(new[1], 0, 9, persist=False)
    assert memory.grant(0, 128 * KIB, ranks_on_node=1).paths == new
    assert memory.complete_steps(0) == [8, 9]
    assert not old[0].exists()


def test_node_without_room_for_all_its_ranks_uses_disk_for_all(
    scarce: None, memory: SnapshotMemory, tmp_path: Path
) -> None:
    grant = memory.grant(0, 64 * KIB, ranks_on_node=2)
    assert grant.on_disk
    assert grant.paths == tuple(tmp_path / "run" / "slots" / "node-a" / f"rank-00000.{n}.slot" for n in range(2))
    assert (grant.needed_bytes, grant.free_bytes) == (2 * 2 * 64 * KIB, 250 * KIB)
    assert [part for part in ("need 0.2 MiB", "only 0.2 MiB", "--shm-size") if part not in grant.reason] == []
    assert memory.grant(1, 8 * KIB, ranks_on_node=2).on_disk
    assert not list((tmp_path / "shm").iterdir())


def test_ranks_that_have_slots_are_not_counted_again(scarce: None, memory: SnapshotMemory) -> None:
    assert not memory.grant(0, 32 * KIB, ranks_on_node=2).on_disk
    assert not memory.grant(1, 64 * KIB, ranks_on_node=2).on_disk


def test_request_that_fits_nowhere_is_refused_with_reasons(memory: SnapshotMemory, tmp_path: Path) -> None:
    grant = memory.grant(0, PETABYTE, ranks_on_node=1)
    assert grant.paths == ()
    assert f"snapshots need {2 * 2**20:.1f} GiB in {tmp_path / 'shm'}" in grant.reason
    assert f"{tmp_path / 'run' / 'slots' / 'node-a'} needs" in grant.reason
    assert grant.needed_bytes == 2 * PETABYTE
    assert 0 < grant.free_bytes < PETABYTE
    assert memory.slots(0) == []
    assert not memory.grant(0, 64 * KIB, ranks_on_node=1).on_disk, "memory is tried again"


def test_small_memory_file_system_is_measured(small_tmpfs: Path, tmp_path: Path) -> None:
    memory = SnapshotMemory(small_tmpfs, tmp_path / "slots", "run", "node-a")
    assert not memory.grant(0, 64 * KIB, ranks_on_node=5).on_disk
    grant = memory.grant(1, 64 * KIB, ranks_on_node=8)
    assert grant.on_disk
    assert grant.free_bytes < (1 << 20) - 2 * 64 * KIB
    assert str(small_tmpfs) in grant.reason
    assert len(memory.slots(0)) == 2


def test_memory_that_fills_up_during_the_grant_falls_back_to_disk(
    small_tmpfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_memory, "memory_room", lambda _: Room(PETABYTE, "", ""))
    memory = SnapshotMemory(small_tmpfs, tmp_path / "slots", "run", "node-a")
    grant = memory.grant(0, 600 * KIB, ranks_on_node=1)
    assert grant.on_disk
    assert os.strerror(errno.ENOSPC) in grant.reason
    assert len(grant.paths) == 2
    assert [path for path in small_tmpfs.rglob("*") if path.is_file()] == []


def test_directory_that_others_could_have_prepared_is_not_used(tmp_path: Path, snapshots: Snapshots) -> None:
    own = tmp_path / "shm" / f"holdfast-{os.geteuid()}-run@node-a"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    bait = snapshots.slot(0, 7).rename(elsewhere / "rank-00000.0.slot")

    (tmp_path / "shm").mkdir()
    own.symlink_to(elsewhere)
    _expect_disk(new_memory(tmp_path))
    own.unlink()
    own.mkdir()
    own.chmod(0o770)
    _expect_disk(new_memory(tmp_path))
    if os.geteuid() == 0:
        own.chmod(0o700)
        os.chown(own, 12345, 12345)
        _expect_disk(new_memory(tmp_path))
    assert bait.exists()


def _expect_disk(memory: SnapshotMemory) -> None:
    memory.adopt()
    assert memory.complete_steps(0) == []
    grant = memory.grant(0, 64 * KIB, ranks_on_node=1)
    assert grant.on_disk
    assert "not a directory of this user alone" in grant.reason and "--shm-directory" in grant.reason
    memory.remove_all()


def test_new_agent_adopts_what_the_old_one_left(memory: SnapshotMemory, snapshots: Snapshots, tmp_path: Path) -> None:
    granted = {rank: memory.grant(rank, 64 * KIB, ranks_on_node=2) for rank in range(2)}
    snapshots.fill(granted[1].paths[1], 1, 7)
    successor = new_memory(tmp_path)
    successor.adopt()
    assert not successor.on_disk
    assert [successor.slots(rank) for rank in range(2)] == [list(granted[rank].paths) for rank in range(2)]
    assert successor.complete_steps(1) == [7]
    assert successor.grant(1, 64 * KIB, ranks_on_node=2) == granted[1]


def test_new_agent_adopts_slots_on_disk(scarce: None, memory: SnapshotMemory, tmp_path: Path) -> None:
    granted = memory.grant(0, 64 * KIB, ranks_on_node=4)
    successor = new_memory(tmp_path)
    successor.adopt()
    assert successor.on_disk
    assert successor.slots(0) == list(granted.paths)
    assert successor.grant(1, 8 * KIB, ranks_on_node=2).on_disk


def test_slots_half_created_are_not_granted(memory: SnapshotMemory, tmp_path: Path) -> None:
    paths = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    paths[1].write_bytes(b"")
    successor = new_memory(tmp_path)
    successor.adopt()
    assert successor.slots(0) == []
    assert not paths[1].exists()
    assert len(successor.grant(0, 64 * KIB, ranks_on_node=1).paths) >= 2
    assert len(successor.slots(0)) >= 2


def test_agent_that_starts_anew_is_not_disturbed_by_leftovers(memory: SnapshotMemory, tmp_path: Path) -> None:
    paths = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    assert new_memory(tmp_path).grant(0, 128 * KIB, ranks_on_node=1).paths == paths
    assert paths[0].stat().st_size == 128 * KIB


def test_step_whose_slot_is_being_overwritten_is_not_complete(memory: SnapshotMemory, snapshots: Snapshots) -> None:
    for path, step in zip(memory.grant(0, 64 * KIB, ranks_on_node=1, slots=3).paths, (8, 9, 7), strict=True):
        snapshots.fill(path, 0, step, persist=False)
    assert memory.complete_steps(0) == [7, 8, 9]
    held = memory.slot_holding(0, 8)
    assert held == memory.slots(0)[0]
    with Slot(held) as slot:
        slot.begin(generation=1, step=10, rank=0)
    assert memory.complete_steps(0) == [7, 9]
    assert memory.slot_holding(0, 8) is None


def test_pinned_slot_is_found_first_and_released_by_its_rank_and_step(
    memory: SnapshotMemory, snapshots: Snapshots
) -> None:
    paths = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    snapshots.fill(paths[0], 0, 7, persist=False)
    snapshots.fill(paths[1], 0, 7, persist=True)
    assert memory.slot_holding(0, 7) == paths[1]
    memory.release(0, 8)
    memory.release(1, 7)
    assert [Slot(path).header.persist for path in paths] == [False, True]
    memory.release(0, 7)
    assert [Slot(path).header.persist for path in paths] == [False, False]
    assert memory.complete_steps(0) == [7]


def test_a_rank_that_needs_more_slots_gets_them_in_addition_to_those_it_has(
    memory: SnapshotMemory, snapshots: Snapshots
) -> None:
    two = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    snapshots.fill(two[1], 0, 7, persist=False)
    three = memory.grant(0, 60 * KIB, ranks_on_node=1, slots=3).paths
    assert three[:2] == two
    assert {path.stat().st_size for path in three} == {64 * KIB}
    assert memory.complete_steps(0) == [7]
    assert memory.grant(0, 60 * KIB, ranks_on_node=1, slots=2).paths == three


def test_a_rank_keeps_its_slots_when_there_is_no_room_for_more(scarce: None, memory: SnapshotMemory) -> None:
    two = memory.grant(0, 64 * KIB, ranks_on_node=1)
    assert memory.grant(0, 64 * KIB, ranks_on_node=1, slots=6) == two
    assert not memory.on_disk


@pytest.mark.parametrize(
    ("ranks_on_node", "granted"), [(1, [2, 3]), (2, [2, 2])], ids=["room for all", "no room for the other rank's"]
)
def test_an_extra_slot_is_granted_only_if_all_ranks_of_the_node_can_have_one(
    five_slots: None, memory: SnapshotMemory, ranks_on_node: int, granted: list[int]
) -> None:
    grants = [memory.grant(0, 64 * KIB, ranks_on_node, extra=extra) for extra in (0, 1)]
    assert [len(grant.paths) for grant in grants] == granted
    assert [(grant.on_disk, grant.reason) for grant in grants] == [(False, "")] * 2
    assert memory.slots(0) == list(grants[1].paths)
    assert memory.grant(0, 64 * KIB, ranks_on_node, extra=1) == grants[1]


def test_an_extra_slot_never_moves_slots_to_the_disk_and_is_none_there(
    five_slots: None, memory: SnapshotMemory
) -> None:
    grant = memory.grant(0, 128 * KIB, ranks_on_node=1, extra=1)
    assert (len(grant.paths), grant.on_disk) == (2, False)
    grant = memory.grant(1, 128 * KIB, ranks_on_node=2, extra=1)
    assert (len(grant.paths), grant.on_disk, bool(grant.reason)) == (2, True, True)


def test_the_slot_of_a_replica_is_found_and_released_by_its_rank_and_step(
    memory: SnapshotMemory, snapshots: Snapshots
) -> None:
    paths = memory.grant(0, 64 * KIB, ranks_on_node=1, slots=3).paths
    snapshots.fill(paths[0], 0, 7, persist=False)
    snapshots.fill(paths[1], 0, 8, persist=True, replica=True)
    found = [memory.pinned_for_replica(rank, step) for rank, step in ((0, 7), (1, 8), (0, 8))]
    assert found == [None, None, paths[1]]
    memory.release_replica(0, 7)
    memory.release(0, 8)
    assert memory.pinned_for_replica(0, 8) == paths[1]
    memory.release_replica(0, 8)
    assert memory.pinned_for_replica(0, 8) is None
    assert memory.complete_steps(0) == [7, 8]


def test_replica_pins_end_with_the_generation_and_with_the_agent(
    memory: SnapshotMemory, snapshots: Snapshots, tmp_path: Path
) -> None:
    paths = memory.grant(0, 64 * KIB, ranks_on_node=1, slots=3).paths
    pins = ((6, True, True), (7, False, True), (5, False, True))

    def fill() -> None:
        for path, (step, persist, replica) in zip(paths, pins, strict=True):
            snapshots.fill(path, 0, step, persist=persist, replica=replica)

    def left() -> list[tuple[int, bool, bool]]:
        headers = [header for path in paths if (header := memory.header(path)) and header.state is SlotState.COMPLETE]
        return [(header.step, header.persist, header.replica) for header in headers]

    fill()
    new_memory(tmp_path).adopt()
    assert left() == [(6, True, False), (7, False, False), (5, False, False)]
    fill()
    memory.keep_only(7, range(2))
    assert left() == [(6, True, False), (7, False, False)]


def test_a_slot_is_pinned_by_the_agent_if_it_still_holds_the_step(memory: SnapshotMemory, snapshots: Snapshots) -> None:
    first, second = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    snapshots.fill(first, 0, 20, persist=False)
    snapshots.fill(second, 0, 21, persist=False)
    memory.pin(0, 19)
    memory.pin(0, 20)
    assert [Slot(path).header.persist for path in (first, second)] == [True, False]


def test_only_the_step_to_restore_is_kept_and_what_is_pinned_before_it(
    memory: SnapshotMemory, snapshots: Snapshots
) -> None:
    old = memory.grant(0, 64 * KIB, ranks_on_node=2).paths
    snapshots.fill(old[0], 0, 9)
    paths = memory.grant(0, 128 * KIB, ranks_on_node=2, slots=3).paths
    for path, step in zip(paths, (7, 8, 6), strict=True):
        snapshots.fill(path, 0, step, persist=True)
    memory.keep_only(7, range(2))
    headers = [memory.header(path) for path in paths]
    kept, emptied = (SlotState.COMPLETE, True), (SlotState.EMPTY, False)
    assert [header and (header.state, header.persist) for header in headers] == [kept, emptied, kept]
    assert not old[0].exists()
    memory.keep_only(-1, range(2))
    assert memory.complete_steps(0) == []
    assert memory.slots(0) == list(paths)


def test_slots_of_ranks_that_are_not_on_the_node_go_except_one_that_is_pinned(
    memory: SnapshotMemory, snapshots: Snapshots
) -> None:
    paths = {rank: memory.grant(rank, 64 * KIB, ranks_on_node=3).paths for rank in range(3)}
    for rank, slots in paths.items():
        snapshots.fill(slots[0], rank, 7, persist=False)
        snapshots.fill(slots[1], rank, 6, persist=rank == 2)
    memory.keep_only(7, [0])
    assert [path.exists() for rank in range(3) for path in paths[rank]] == [True, True, False, False, False, True]
    assert memory.slot_holding(2, 6) == paths[2][1]
    memory.release(2, 6)
    memory.keep_only(7, [0])
    assert not paths[2][1].exists()
    assert [memory.complete_steps(rank) for rank in range(3)] == [[7], [], []]
    assert len(memory.grant(2, 64 * KIB, ranks_on_node=3).paths) == 2


@pytest.mark.parametrize("harm", ["remove", "overwrite", "cut"])
@pytest.mark.parametrize("count", [1, 2])
def test_slots_that_were_harmed_from_outside_are_replaced_before_the_next_start(
    memory: SnapshotMemory, snapshots: Snapshots, harm: str, count: int
) -> None:
    paths = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    for number, path in enumerate(paths):
        snapshots.fill(path, 0, 6 + number)
    for path in paths[:count]:
        match harm:
            case "remove":
                path.unlink()
            case "overwrite":
                path.write_bytes(b"x" * 64 * KIB)
            case "cut":
                os.truncate(path, 32 * KIB)
    memory.keep_only(7, range(2))
    assert memory.complete_steps(0) == [7][count - 1 :]
    granted = memory.grant(0, 64 * KIB, ranks_on_node=1).paths
    assert len(granted) >= 2
    assert all(memory.header(path) is not None and path.stat().st_size == 64 * KIB for path in granted)


def test_end_removes_this_nodes_slots_and_no_others(scarce: None, memory: SnapshotMemory, tmp_path: Path) -> None:
    neighbour = new_memory(tmp_path, "node-b")
    kept = neighbour.grant(1, 8 * KIB, ranks_on_node=1).paths
    memory.grant(0, 8 * KIB, ranks_on_node=1)
    memory.grant(0, 64 * KIB, ranks_on_node=8)
    (memory.replica_directory / "step-00000007").mkdir(parents=True)
    (memory.replica_directory / "step-00000007" / "rank-00000.shard").touch()  # left by an agent that made some
    new_memory(tmp_path).remove_all()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
    assert [path.name for path in (tmp_path / "shm").iterdir()] == [f"holdfast-{os.geteuid()}-run@node-b"]
    new_memory(tmp_path).remove_all()


def test_checkpoint_is_restored_into_slots_that_the_rank_continues_with(
    memory: SnapshotMemory, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    snapshots.commit(checkpoints, 7)
    slot = slot_for(checkpoints.step_directory(7), 1, memory, ranks_on_node=2)
    read_shard(checkpoints.step_directory(7), 1, slot, generation=3)
    assert memory.slot_holding(1, 7) == slot
    assert memory.complete_steps(1) == [7]
    # The size that the rank once asked for.
    assert slot in memory.grant(1, 1 << 16, ranks_on_node=2).paths


def test_checkpoint_that_finds_no_slot_is_reported(
    snapshots: Snapshots, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 7)
    (tmp_path / "file").touch()
    memory = SnapshotMemory(tmp_path / "missing", tmp_path / "file", "run", "node-a")
    with pytest.raises(SnapshotError, match=r"rank 1 has no slot to restore into: .*--shm-directory"):
        slot_for(checkpoints.step_directory(7), 1, memory, ranks_on_node=2)


def test_tightest_memory_limit_of_all_enclosing_groups_counts(tmp_path: Path) -> None:
    pod, container = tmp_path / "pod", tmp_path / "pod" / "container"
    container.mkdir(parents=True)
    for group, limit, current, inactive in ((pod, "1000", 900, 300), (container, "max", 500, 0)):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{current}\n")
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    assert cgroup_free_bytes(container, tmp_path) == 400
    (container / "memory.max").write_text("550\n")
    assert cgroup_free_bytes(container, tmp_path) == 50
    assert cgroup_free_bytes(tmp_path / "elsewhere", tmp_path) is None


def test_room_keeps_a_reserve(small_tmpfs: Path) -> None:
    room = memory_room(small_tmpfs)
    assert (1 << 20) * 9 // 10 < room.free_bytes < 1 << 20
    assert room.limit == str(small_tmpfs)


def test_a_request_without_a_free_descriptor_is_refused_and_the_next_one_gets_memory(
    memory: SnapshotMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        refused = memory.grant(0, 64 * KIB, ranks_on_node=1)
    assert refused.paths == ()
    assert "Too many open files" in refused.reason
    assert "raise the agent's limits (ulimit -n)" in refused.reason
    granted = memory.grant(0, 64 * KIB, ranks_on_node=1)
    assert (len(granted.paths), granted.on_disk, granted.reason) == (2, False, "")
