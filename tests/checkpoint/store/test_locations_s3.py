"""Places of checkpoints on a server that speaks S3."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format.slot_shard import write_shard
from holdfast_checkpoint.store.locations import PRIMARY, open_objects
from holdfast_checkpoint.store.object_store import ObjectStore
from holdfast_checkpoint.store.retries import Retries
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints
from holdfast_cli.main import app
from holdfast_proto.exit_codes import ExitCode
from tests.checkpoint.store.test_locations import assert_restores
from tests.support.object_places import QUICK
from tests.support.snapshots import RUN, Snapshots


@pytest.fixture
def node(url: str, tmp_path: Path, snapshots: Snapshots) -> StagedCheckpoints:
    """A node that has saved a full checkpoint and one that builds on it."""
    node = StagedCheckpoints(open_objects(PRIMARY, url), tmp_path / "staging", 2)
    node.check_writable()
    for step in (10, 20):
        base = node.base_for(step, run=RUN, world_size=2, generation=1, full_every=8)
        for rank in range(2):
            write_shard(snapshots.slot(rank, step), node.step_directory(step), run=RUN, world_size=2, base_step=base)
            node.publish(step, rank)
        assert node.commit_if_complete(step, 2, RUN) is not None
    return node


def checkpoint(*words: object) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, words)])


def test_checkpoint_comes_back_on_a_new_node(
    node: StagedCheckpoints, url: str, tmp_path: Path, snapshots: Snapshots
) -> None:
    new = StagedCheckpoints(open_objects(PRIMARY, url), tmp_path / "new", 2)
    assert sorted(new.manifests()) == [10, 20]
    directory = new.fetch(20)
    for rank in range(2):
        assert_restores(snapshots, directory, rank, 20)


def test_commands_take_the_url(node: StagedCheckpoints, url: str, client: Any) -> None:
    node.keep(10, "loss spike")
    listed = json.loads(checkpoint("list", "--checkpoints", url, "--json").stdout)
    assert [(found["step"], found["kept"]) for found in listed] == [(10, "loss spike"), (20, "")]
    assert "model.weight" in checkpoint("show", "--checkpoints", url).stdout
    assert checkpoint("release", 10, "--checkpoints", url).exit_code == 0
    assert node.mark(10) is None
    assert checkpoint("verify", "--all", "--checkpoints", url).exit_code == 0
    bucket, prefix = url.removeprefix("s3://").split("/", 1)
    key = f"{prefix}/step-00000020/rank-00001.shard"
    whole = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=bytes([whole[0] ^ 1]) + whole[1:])
    verified = checkpoint("verify", "--checkpoints", url)
    assert verified.exit_code == 1
    assert f"{url}/step-00000020/rank-00001.shard" in verified.stdout


def test_file_is_imported_into_the_store_once(url: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    torch.save({"weight": torch.arange(6.0)}, weights)
    arguments = ("import", weights, "--into", url, "--step", 30, "--run", "new")
    imported = checkpoint(*arguments)
    assert imported.exit_code == 0, imported.output
    assert imported.stdout.endswith(f"committed in {url}\n")
    assert checkpoint("verify", 30, "--checkpoints", url).exit_code == 0
    assert open_objects(PRIMARY, url).load_manifest(30).run == "new"
    again = checkpoint(*arguments)
    assert again.exit_code == 1
    assert f"{url}/step-00000030/manifest.json exists: choose another --step or remove it" in again.stderr


def test_import_into_a_url_with_credentials_is_refused(tmp_path: Path) -> None:
    refused = checkpoint("import", tmp_path / "x.pt", "--into", "s3://me:secret@bucket", "--step", 1, "--run", "r")
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert refused.stderr.startswith("holdfast: --into s3://bucket: give a URL without user")


def test_missing_bucket_is_reported_in_one_line(server: str, tmp_path: Path) -> None:
    missing = StagedCheckpoints(open_objects(PRIMARY, "s3://no-such-bucket/run"), tmp_path / "staging", 2)
    with pytest.raises(CheckpointError, match=r"--checkpoints s3://no-such-bucket/run: no such bucket or folder"):
        missing.check_writable()


def test_missing_credentials_are_reported_with_their_place(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    store: ObjectStore = open_objects(PRIMARY, url, Retries(limit=1, backoff=QUICK)).store
    with pytest.raises(CheckpointError, match=r"access denied: check the credentials in AWS_ACCESS_KEY_ID or ~/\.aws"):
        store.write("x", b"1")


def test_wrong_credentials_are_reported_immediately_in_one_line(strict_server: str, url: str, tmp_path: Path) -> None:
    node = StagedCheckpoints(open_objects(PRIMARY, url), tmp_path / "staging", 2)
    with pytest.raises(CheckpointError) as raised:
        node.check_writable()
    assert str(raised.value) == (
        f"--checkpoints {url}: access denied: "
        "check the credentials in AWS_ACCESS_KEY_ID or ~/.aws and their rights on the bucket"
    )
    assert node.store_retries.attempts_total == 1
