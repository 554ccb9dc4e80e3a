import random
import shutil
import sys
from pathlib import Path

import pytest
from fsspec.registry import _registry
from typer.testing import CliRunner

from holdfast_checkpoint.checkpoint_errors import (
    CheckpointCommitted,
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
)
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.download import CheckpointDownload
from holdfast_checkpoint.store.locations import check_location, open_objects
from holdfast_checkpoint.store.run_checkpoints import open_checkpoints
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints
from holdfast_cli.main import app
from holdfast_proto.exit_codes import ExitCode
from tests.checkpoint.conftest import contents
from tests.support.object_places import Place
from tests.support.snapshots import RUN, Snapshots


@pytest.fixture
def place() -> Place:
    return Place()


class Nodes:
    """Nodes with one rank each that share a place."""

    def __init__(self, place: Place, folder: Path, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self._place, self._folder = place, folder
        self.of = [self.new(f"node{rank}") for rank in range(2)]

    def new(self, name: str = "new") -> StagedCheckpoints:
        return StagedCheckpoints(self._place.open(), self._folder / name, 2)

    def base(self, step: int, generation: int = 1) -> set[int | None]:
        """Let every node ask for the base of a step."""
        return {node.base_for(step, run=RUN, world_size=2, generation=generation, full_every=8) for node in self.of}

    def write(self, node: StagedCheckpoints, rank: int, step: int, generation: int) -> None:
        slot = self.snapshots.slot(rank, step, generation=generation)
        write_shard(slot, node.step_directory(step), run=RUN, world_size=2)

    def expect_restored(self, step: int) -> None:
        """Check that a new node gets the state of every rank."""
        directory = self.new().fetch(step)
        for rank in range(2):
            assert_restores(self.snapshots, directory, rank, step)

    def save(self, step: int, *, generation: int = 1, base: int | None = None, run: str = RUN) -> Manifest | None:
        """Let every node write, publish and commit; return what the last one has committed."""
        manifest = None
        for rank, node in enumerate(self.of):
            slot = self.snapshots.slot(rank, step, generation=generation)
            write_shard(slot, node.step_directory(step), run=run, world_size=2, base_step=base)
            node.publish(step, rank)
            manifest = node.commit_if_complete(step, 2, run)
        return manifest


@pytest.fixture
def nodes(place: Place, tmp_path: Path, snapshots: Snapshots) -> Nodes:
    return Nodes(place, tmp_path, snapshots)


def assert_restores(snapshots: Snapshots, directory: Path, rank: int, step: int, generation: int = 1) -> None:
    slot_path = snapshots.empty(1 << 17)
    read_shard(directory, rank, slot_path, generation=7)
    assert contents(slot_path) == snapshots.tensors(rank, step, generation)


def test_manifest_is_put_after_every_shard_and_index(place: Place, nodes: Nodes) -> None:
    assert nodes.save(40) is not None
    names = [f"rank-0000{rank}.{kind}" for rank in range(2) for kind in ("shard", "json")]
    assert place.files.puts == [f"step-00000040/{name}" for name in (*names, "manifest.json")]
    assert sorted(nodes.of[0].manifests()) == [40]


def test_new_node_downloads_what_its_rank_needs_and_no_more(nodes: Nodes) -> None:
    nodes.save(40)
    directory = nodes.new().fetch(40, [1])
    assert_restores(nodes.snapshots, directory, 1, 40)
    assert sorted(path.name for path in directory.iterdir()) == ["manifest.json", "rank-00001.json", "rank-00001.shard"]


def test_base_is_kept_and_comes_along(nodes: Nodes) -> None:
    nodes.save(10)
    for step in (20, 30, 40):
        assert nodes.base(step) == {10}
        manifest = nodes.save(step, base=10)
        assert manifest is not None and manifest.bases == (10,)
    assert sorted(nodes.of[0].manifests()) == [10, 30, 40]
    nodes.expect_restored(40)


def test_flaky_store_delays_checkpoints_and_loses_none(place: Place, nodes: Nodes) -> None:
    chance = random.Random(5)
    place.files.fails = lambda _number, _method: OSError("reset by peer") if chance.random() < 0.2 else None
    for step in (10, 20, 30):
        assert nodes.save(step) is not None
    nodes.expect_restored(30)
    retries = [node.store_retries for node in nodes.of]
    assert all(0 < counted.failures_total < counted.attempts_total for counted in retries)


def test_object_that_arrives_short_is_put_again(place: Place, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_file = place.files.inner.pipe_file
    arrived: list[str] = []

    def cut(target: str, data: bytes) -> None:
        pipe_file(target, data if arrived else data[:-1])
        arrived.append(target)

    monkeypatch.setattr(place.files.inner, "pipe_file", cut)
    assert nodes.save(40) is not None
    shards = [name.rpartition("/")[2] for name in arrived if name.endswith(".shard")]
    assert shards == ["rank-00000.shard"] * 2 + ["rank-00001.shard"]


@pytest.mark.parametrize(
    ("committed", "again"), [(1, 2), (2, 1)], ids=["by a later one", "by a node that was replaced"]
)
def test_step_that_is_saved_again_leaves_what_was_committed(
    committed: int, again: int, place: Place, nodes: Nodes
) -> None:
    assert nodes.save(10, generation=committed) is not None
    nodes.base(20, generation=committed)
    assert nodes.save(20, generation=committed, base=10) is not None
    before = place.names()
    new = nodes.new()
    nodes.write(new, 1, 10, generation=again)
    with pytest.raises(CheckpointCommitted, match=f"is committed already, by generation {committed}: it stays"):
        new.publish(10, 1)
    assert sorted(new.manifests()) == sorted(nodes.of[1].manifests()) == [10, 20]
    assert place.names() == before


def test_node_that_is_replaced_while_it_cannot_reach_the_store_does_not_put_its_shard(
    place: Place, nodes: Nodes
) -> None:
    replaced = nodes.new()
    nodes.write(replaced, 1, 10, generation=1)

    def cut_off_once(_number: int, method: str) -> Exception | None:
        if method != "pipe_file":
            return None
        place.files.fails = lambda _number, _method: None
        nodes.save(10, generation=2)
        return OSError("no route to host")

    place.files.fails = cut_off_once
    with pytest.raises(CheckpointError, match="is of generation 1, and generation 2 has saved this step again"):
        replaced.publish(10, 1)
    assert_restores(nodes.snapshots, nodes.of[0].fetch(10, again=True), 1, 10, generation=2)


def test_shard_that_is_published_again_is_not_uploaded_again(place: Place, nodes: Nodes) -> None:
    nodes.save(40)
    puts = list(place.files.puts)
    nodes.of[0].publish(40, 0)
    assert place.files.puts == puts


def test_checkpoint_of_another_run_is_not_replaced(nodes: Nodes) -> None:
    nodes.save(40)
    shutil.rmtree(nodes.of[0].path)
    with pytest.raises(CheckpointError, match="is a checkpoint of run run: set --checkpoints to a URL of its own"):
        nodes.save(40, run="other", generation=2)


def test_marked_checkpoint_stays_in_the_store(nodes: Nodes) -> None:
    nodes.save(10)
    nodes.of[1].keep(10, "loss spike")
    for step in (20, 30, 40):
        nodes.save(step)
    assert sorted(nodes.of[0].manifests()) == [10, 30, 40]


def test_staging_holds_no_more_than_the_store(nodes: Nodes) -> None:
    for step in (10, 20, 30):
        nodes.save(step)
    nodes.of[1].base_for(40, run=RUN, world_size=2, generation=1, full_every=1)
    assert sorted(path.name for path in nodes.of[1].path.iterdir()) == ["step-00000020", "step-00000030"]


def test_shard_that_is_being_written_stays_in_the_staging_folder_though_newer_steps_are_committed(nodes: Nodes) -> None:
    nodes.save(40)
    node = nodes.of[0]
    for step in (10, 20):  # the run went back
        node.base_for(step, run=RUN, world_size=2, generation=2, full_every=8)
        nodes.write(node, 0, step, generation=2)
    assert sorted(path.name for path in node.path.iterdir()) == ["step-00000010", "step-00000020", "step-00000040"]


def test_damaged_copy_on_the_node_is_fetched_again(nodes: Nodes) -> None:
    nodes.save(40)
    shard = nodes.of[0].step_directory(40) / "rank-00000.shard"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(CheckpointUnreadable):
        assert_restores(nodes.snapshots, nodes.of[0].fetch(40, [0]), 0, 40)
    assert_restores(nodes.snapshots, nodes.of[0].fetch(40, [0], again=True), 0, 40)


def test_object_missing_in_the_store_is_named(place: Place, nodes: Nodes, tmp_path: Path) -> None:
    nodes.save(40)
    place.open().store.remove(["step-00000040/rank-00001.shard"])
    with pytest.raises(CheckpointUnavailable, match=r"prefix/step-00000040/rank-00001\.shard: No such object"):
        CheckpointDownload(place.open(), 40, tmp_path / "new").fetch()


def test_denied_access_is_reported_immediately_in_one_line(place: Place, nodes: Nodes) -> None:
    place.files.fails = lambda _number, _method: PermissionError("Forbidden")
    with pytest.raises(CheckpointError) as raised:
        nodes.of[0].check_writable()
    assert str(raised.value).startswith(f"--checkpoints {place.url}: access denied: check the credentials")
    assert nodes.of[0].store_retries.attempts_total == 1


def test_store_that_stays_unreachable_is_reported_after_several_tries(place: Place, nodes: Nodes) -> None:
    place.files.fails = lambda _number, _method: TimeoutError("no answer\nwithin 5 s")
    with pytest.raises(CheckpointError, match="no answer within 5 s: check that the store can be reached"):
        sorted(nodes.of[0].manifests())
    assert nodes.of[0].store_retries.failures_total == nodes.of[0].store_retries.limit


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="--checkpoints s3://bucket/run: give a URL without user") as raised:
        check_location("--checkpoints", "s3://me:secret@bucket/run")
    assert "secret" not in str(raised.value)


def test_missing_package_is_reported_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_registry, "s3", raising=False)  # another test may have needed it
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(CheckpointError, match=r"--checkpoints s3://b/p: .*: install the extra s3 of holdfast-torch"):
        open_objects("--checkpoints", "s3://b/p")


def test_folder_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    checkpoints = open_checkpoints(str(tmp_path / "checkpoints"), tmp_path / "staging", 2, run=RUN)
    checkpoints.present.check_writable()
    assert checkpoints.committed() == []


@pytest.mark.parametrize("setting", ["--checkpoints", "--checkpoints-secondary"])
def test_run_refuses_credentials_before_anything_starts(setting: str) -> None:
    refused = CliRunner().invoke(app, ["run", setting, "s3://me:secret@bucket/run", "--", "true"])
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert f"{setting} s3://bucket/run: give a URL without user" in refused.output
    assert "secret" not in refused.output
