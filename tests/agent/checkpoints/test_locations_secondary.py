import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.shard_index import index_path, shard_path
from holdfast_checkpoint.format.slot_shard import write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.locations import HistoryCheckpoints
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints
from holdfast_checkpoint.store.secondary import Secondary
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints
from holdfast_proto.snapshot import Slot
from tests.support.coroutines import wait_until
from tests.support.nodes import RUN, node_checkpoints
from tests.support.object_places import QUICK, Place
from tests.support.snapshots import Snapshots, as_run

Open = Callable[..., Secondary]
FILES = ["rank-00000.shard", "rank-00000.json", "rank-00001.shard", "rank-00001.json", "manifest.json"]


@pytest.fixture
def place() -> Place:
    return Place("--checkpoints-secondary")


@pytest.fixture
def opened(place: Place, checkpoints: CheckpointDirectory) -> Iterator[Open]:
    """A function that opens the secondary as an agent does, with the folder's checkpoints as the primary."""
    every: list[Secondary] = []

    def open_secondary(ranks: range = range(2), *, kept: int = 2, start: bool = True) -> Secondary:
        secondary = Secondary(as_run(checkpoints), place.open(), run=RUN, kept=kept, backoff=QUICK)
        every.append(secondary)
        if start:
            secondary.start(lambda: (ranks, 2))
        return secondary

    yield open_secondary
    for secondary in every:
        secondary.close()


def copied(secondary: Secondary) -> list[int]:
    """Wait until everything is copied; return the steps that the secondary holds."""
    assert secondary.wait(20)
    return sorted(secondary.remote.manifests())


@contextlib.contextmanager
def node_of(
    folder: Path, checkpoints: HistoryCheckpoints, secondary: Secondary | None = None
) -> Iterator[NodeCheckpoints]:
    for name in ("shm", "slots"):
        (folder / name).mkdir(exist_ok=True)
    memory = SnapshotMemory(folder / "shm", folder / "slots", RUN, "node0")
    node = node_checkpoints(memory, checkpoints, lambda _event: None, secondary)
    yield node
    node.close()


async def starting_slots(node: NodeCheckpoints) -> Mapping[int, Path]:
    """Restore step 10 for two ranks; return their slots."""
    return (await node.restorer.starting_point(10, range(2), world_size=2, generation=3)).slots


def test_committed_checkpoints_are_copied_manifest_last(
    place: Place, opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    snapshots.commit(checkpoints, 10)
    secondary = opened()
    assert copied(secondary) == [10]
    snapshots.commit(checkpoints, 20)
    assert copied(secondary) == [10, 20]
    assert [name.rpartition("/")[2] for name in place.files.puts[-5:]] == FILES
    assert (secondary.lag.checkpoints, secondary.lag.nbytes, secondary.failures_total) == (0, 0, 0)


def test_every_node_copies_its_own_shards(
    place: Place, opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    snapshots.commit(checkpoints, 10)
    first = opened(range(1))
    assert copied(first) == []
    manifest = checkpoints.load_manifest(10)
    assert (first.lag.checkpoints, first.lag.nbytes) == (1, manifest.shards[0].shard_bytes)
    assert copied(opened(range(1, 2))) == [10]
    assert place.files.puts.count("step-00000010/rank-00000.shard") == 1


def test_copy_that_was_cut_off_continues_file_by_file_in_the_next_process(
    place: Place, opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    snapshots.commit(checkpoints, 10)

    def store_breaks_after_two_files(_number: int, method: str) -> Exception | None:
        breaks = method == "pipe_file" and len(place.files.puts) >= 3
        return PermissionError("quota") if breaks else None

    place.files.fails = store_breaks_after_two_files
    cut_off = opened()
    assert copied(cut_off) == []
    cut_off.close()
    assert cut_off.failures_total >= 1
    place.files.fails = lambda _number, _method: None
    assert copied(opened()) == [10]
    assert [name.rpartition("/")[2] for name in place.files.puts] == FILES


def test_copies_continue_after_a_time_without_new_threads(
    opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    snapshots.commit(checkpoints, 10)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectCheckpoints, "put_shard", refuse)
        secondary = opened()
        wait_until(lambda: secondary.failures_total, "a copy fails")
    assert copied(secondary) == [10]


def test_secondary_keeps_its_own_number_and_what_they_build_on(
    place: Place, opened: Open, snapshots: Snapshots, tmp_path: Path
) -> None:
    primary = CheckpointDirectory(tmp_path / "checkpoints", kept=9)
    secondary = opened(kept=1)
    for step, base in ((10, None), (20, 10), (30, 10)):
        for rank in range(2):
            slot = snapshots.slot(rank, step)
            write_shard(slot, primary.step_directory(step), run=RUN, world_size=2, base_step=base)
        assert primary.commit_if_complete(step, 2, RUN) is not None
        assert copied(secondary) == [10, step] if base else [10]
    assert primary.committed() == [10, 20, 30]


def test_checkpoint_that_the_disk_has_damaged_is_not_copied_and_pushes_no_copy_out(
    opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    secondary = opened(kept=1)
    snapshots.commit(checkpoints, 10)
    assert copied(secondary) == [10]
    secondary.close()
    snapshots.commit(checkpoints, 20)
    shard = shard_path(checkpoints.step_directory(20), 1)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    secondary = opened(kept=1)
    assert copied(secondary) == [10]
    assert secondary.lag.checkpoints == 1
    assert "step-00000020/rank-00001.shard is damaged" in caplog.text
    snapshots.commit(checkpoints, 30)
    assert copied(secondary) == [30]


def test_mark_goes_along_and_goes_when_it_is_released(
    place: Place, opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    snapshots.commit(checkpoints, 10)
    checkpoints.keep(10, "loss spike")
    secondary = opened()
    for step in (20, 30, 40):
        snapshots.commit(checkpoints, step)
    assert copied(secondary) == [10, 30, 40]
    assert "step-00000010/kept.json" in place.names()
    (checkpoints.step_directory(10) / "kept.json").unlink()
    assert copied(secondary) == [10, 30, 40]
    assert "step-00000010/kept.json" not in place.names()
    snapshots.commit(checkpoints, 50)
    assert copied(secondary) == [40, 50]


def test_the_newest_proven_checkpoint_stays_in_the_secondary_too(
    place: Place, opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    snapshots.commit(checkpoints, 10)
    checkpoints.prove(10, 11)
    secondary = opened(kept=1)
    assert copied(secondary) == [10]
    for step in (20, 30, 40):
        snapshots.commit(checkpoints, step)
        assert copied(secondary) == [10, step]
    assert "step-00000010/proven.json" in place.names()
    checkpoints.prove(40, 41)
    assert copied(secondary) == [10, 40]
    snapshots.commit(checkpoints, 50)
    assert copied(secondary) == [40, 50]


async def test_emptied_primary_is_restored_from_the_secondary(
    opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 10)
    assert copied(opened()) == [10]
    shutil.rmtree(checkpoints.path)
    with node_of(tmp_path, checkpoints, opened(start=False)) as node:
        assert node.inventory.committed == [10]
        slots = await starting_slots(node)
        assert [(rank, Slot(path).header.rank, Slot(path).header.step) for rank, path in sorted(slots.items())] == [
            (0, 0, 10),
            (1, 1, 10),
        ]
        assert checkpoints.committed() == [10]


async def test_damaged_primary_is_repaired_from_the_secondary(
    opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 10)
    secondary = opened()
    assert copied(secondary) == [10]
    shard_path(checkpoints.step_directory(10), 1).write_bytes(b"damaged")
    with node_of(tmp_path, checkpoints, secondary) as node:
        assert sorted(await starting_slots(node)) == [0, 1]
        checkpoints.verify(10)


async def test_checkpoint_damaged_in_both_places_is_named(
    place: Place, opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 10)
    secondary = opened()
    assert copied(secondary) == [10]
    shard_path(checkpoints.step_directory(10), 1).write_bytes(b"damaged")
    secondary.remote.store.remove(["step-00000010/rank-00001.shard"])
    with (
        node_of(tmp_path, checkpoints, secondary) as node,
        pytest.raises(CheckpointUnreadable, match=r"rank-00001\.shard"),
    ):
        await starting_slots(node)


async def test_checkpoint_that_another_node_has_just_committed_is_taken_from_the_primary(
    opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    with node_of(tmp_path, checkpoints, opened(start=False)) as node:
        snapshots.commit(checkpoints, 10)
        assert sorted(await starting_slots(node)) == [0, 1]


async def test_node_stays_until_others_have_committed_what_it_is_to_copy(
    place: Place, opened: Open, snapshots: Snapshots, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    with node_of(tmp_path, checkpoints, opened(range(1))) as node:
        slot = node.memory.grant(0, 1 << 16, 1).paths[0]
        snapshots.fill(slot, 0, 10)
        node.saver.schedule(0, 10, world_size=2)
        leaving = asyncio.create_task(node.saver.drain(60))
        while not index_path(checkpoints.step_directory(10), 0).exists():
            await asyncio.sleep(0.01)
        assert not leaving.done()
        snapshots.write(checkpoints, 1, 10, world_size=2)
        assert checkpoints.commit_if_complete(10, 2, RUN) is not None
        await leaving
        assert "step-00000010/rank-00000.json" in place.names()


def test_newer_copies_are_not_offered_next_to_the_primary(opened: Open) -> None:
    secondary = opened(start=False)
    secondary._steps = [10, 20, 60]
    assert secondary.restorable([20, 40]) == [10, 20, 40]


def test_run_does_not_start_from_the_seed_because_the_secondary_is_unreachable(
    place: Place, opened: Open, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    place.files.fails = lambda _number, _method: PermissionError("no")
    with (
        pytest.raises(CheckpointError, match=r"--checkpoints-secondary memory://.*: access denied"),
        node_of(tmp_path, checkpoints, opened(start=False)),
    ):
        pass


async def test_unreachable_store_does_not_make_a_checkpoint_unreadable(
    place: Place, snapshots: Snapshots, tmp_path: Path
) -> None:
    primary = StagedCheckpoints(place.open(), tmp_path / "staging", 2)
    for rank in range(2):
        write_shard(snapshots.slot(rank, 10), primary.step_directory(10), run=RUN, world_size=2)
        primary.publish(10, rank)
    primary.commit_if_complete(10, 2, RUN)
    with node_of(tmp_path, primary) as node:
        place.files.fails = lambda _number, _method: PermissionError("no")
        with pytest.raises(CheckpointUnavailable, match="access denied"):
            await starting_slots(node)
