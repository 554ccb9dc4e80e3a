"""Against a server that speaks S3."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner, Result

from holdfast_agent.locations import PRIMARY, open_objects
from holdfast_agent.object_store import ObjectStore
from holdfast_agent.retries import Retries
from holdfast_agent.shard import write_shard
from holdfast_agent.staged_checkpoints import StagedCheckpoints
from holdfast_cli.main import app
from holdfast_proto.checkpoint.errors import CheckpointError
from tests.agent.checkpoints.object_places import QUICK
from tests.agent.checkpoints.test_locations import RUN, assert_restores

if TYPE_CHECKING:
    from tests.agent.checkpoints.conftest import Snapshots

_MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server on a free port, known to whoever looks into the environment."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def client(server: str) -> Any:
    return boto3.client("s3", endpoint_url=server)


@pytest.fixture
def url(client: Any) -> str:
    bucket = f"bucket-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/big/run"


@pytest.fixture
def node(url: str, tmp_path: Path, snapshots: "Snapshots") -> StagedCheckpoints:
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
    node: StagedCheckpoints, url: str, tmp_path: Path, snapshots: "Snapshots"
) -> None:
    new = StagedCheckpoints(open_objects(PRIMARY, url), tmp_path / "new", 2)
    assert new.committed() == [10, 20]
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


def test_large_shard_goes_in_parts_and_is_proved(url: str, tmp_path: Path, client: Any) -> None:
    store = open_objects(PRIMARY, url).store
    source = tmp_path / "large"
    source.write_bytes(os.urandom(_MEBIBYTE) * 101)  # fsspec puts files of 100 MiB and more in parts
    store.upload(source, "large")
    bucket, prefix = url.removeprefix("s3://").split("/", 1)
    assert client.head_object(Bucket=bucket, Key=f"{prefix}/large")["ETag"].endswith('-3"')
    assert store.is_copy(source, "large")


def test_missing_bucket_is_told_in_one_line(server: str, tmp_path: Path) -> None:
    missing = StagedCheckpoints(open_objects(PRIMARY, "s3://no-such-bucket/run"), tmp_path / "staging", 2)
    with pytest.raises(CheckpointError, match=r"--checkpoints s3://no-such-bucket/run: no such bucket or folder"):
        missing.check_writable()


def test_missing_credentials_are_told_with_their_place(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    store: ObjectStore = open_objects(PRIMARY, url, Retries(limit=1, backoff=QUICK)).store
    with pytest.raises(CheckpointError, match=r"access denied: check the credentials in AWS_ACCESS_KEY_ID or ~/\.aws"):
        store.write("x", b"1")
