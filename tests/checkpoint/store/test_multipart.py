"""Uploads in parts, against a server that speaks S3."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast_checkpoint.errors import CheckpointError
from holdfast_checkpoint.format.slot_shard import write_shard
from holdfast_checkpoint.store.locations import PRIMARY, open_objects
from holdfast_checkpoint.store.multipart import PART_BYTES, etag_of, part_bytes
from holdfast_checkpoint.store.object_store import ObjectStore
from holdfast_checkpoint.store.retries import Retries
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints
from tests.checkpoint.store.test_locations import RUN
from tests.support.object_places import QUICK

if TYPE_CHECKING:
    from tests.support.snapshots import Snapshots

NAME = "step-00000010/rank-00000.shard"
Fails = Callable[[str, int], Exception | None]


class Agent:
    """A process that uploads: keeps which parts it has put, and fails before or after a call when it is told to."""

    def __init__(self, url: str) -> None:
        self.store: ObjectStore = open_objects(PRIMARY, url, Retries(backoff=QUICK)).store
        self.put: list[int] = []
        self.fails: Fails = lambda _method, _number: None
        self.after: Fails = lambda _method, _number: None
        self._lock = threading.Lock()
        self._call_s3 = self.store._filesystem.call_s3
        self.store._filesystem.call_s3 = self._call

    def _call(self, method: str, **parameters: Any) -> Any:
        number = parameters.get("PartNumber", 0)
        with self._lock:
            error = self.fails(method, number)
        if error is not None:
            raise error
        answer = self._call_s3(method, **parameters)
        if method == "upload_part":
            self.put.append(number)
        error = self.after(method, number)
        if error is not None:
            raise error
        return answer


@pytest.fixture
def source(tmp_path: Path, small_parts: int) -> Path:
    """A file of two whole parts and a small one."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(2 * small_parts) + b"end")
    return path


def where(url: str) -> dict[str, str]:
    bucket, prefix = url.removeprefix("s3://").split("/", 1)
    return {"Bucket": bucket, "Key": f"{prefix}/{NAME}"}


def unfinished(client: Any, url: str) -> list[str]:
    bucket = where(url)["Bucket"]
    return sorted(upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ()))


def expect_whole(client: Any, url: str, source: Path) -> None:
    """Find the object as the file is, and nothing left of its uploads."""
    found = client.get_object(**where(url))
    assert found["Body"].read() == source.read_bytes()
    assert unfinished(client, url) == []


def cut_off_after_the_first_part(agent: Agent, source: Path) -> None:
    agent.fails = lambda method, number: PermissionError("quota") if method == "upload_part" and number > 1 else None
    with pytest.raises(CheckpointError, match="access denied"):
        agent.store.upload(source, NAME)
    assert agent.put == [1]


def test_large_shard_goes_in_parts_and_is_proved_without_being_read(
    url: str, source: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(url)
    monkeypatch.setattr(ObjectStore, "_reads_as", lambda *_: pytest.fail("it was read"))
    agent.store.upload(source, NAME)
    assert sorted(agent.put) == [1, 2, 3]
    assert client.head_object(**where(url))["ETag"] == f'"{etag_of(source)}"'
    assert etag_of(source).endswith("-3")
    assert agent.store.is_copy(source, NAME)
    expect_whole(client, url, source)


def test_upload_that_was_cut_off_goes_on_in_the_next_process(url: str, source: Path, client: Any) -> None:
    cut_off_after_the_first_part(Agent(url), source)
    (left,) = unfinished(client, url)
    assert left == where(url)["Key"]
    successor = Agent(url)
    successor.store.upload(source, NAME)
    assert sorted(successor.put) == [2, 3]
    expect_whole(client, url, source)


def test_part_that_fails_is_put_again_and_no_other(url: str, source: Path, client: Any) -> None:
    agent = Agent(url)
    errors: list[Exception] = [OSError("reset by peer"), TimeoutError("no answer")]
    agent.fails = lambda method, number: errors.pop() if method == "upload_part" and number == 2 and errors else None
    agent.store.upload(source, NAME)
    assert sorted(agent.put) == [1, 2, 3]
    expect_whole(client, url, source)


def test_part_of_other_contents_is_put_again(url: str, source: Path, client: Any) -> None:
    cut_off_after_the_first_part(Agent(url), source)
    source.write_bytes(b"other" + source.read_bytes()[5:])
    successor = Agent(url)
    successor.store.upload(source, NAME)
    assert sorted(successor.put) == [1, 2, 3]
    expect_whole(client, url, source)


def test_part_that_arrived_wrong_is_found_by_the_proof_and_all_is_put_again(
    url: str, source: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(url)
    real, damaged = agent._call_s3, ["once"]

    def call(method: str, **parameters: Any) -> Any:
        if method == "upload_part" and parameters["PartNumber"] == 3 and damaged:
            damaged.pop()
            parameters["Body"] = b"3nd"
        return real(method, **parameters)

    monkeypatch.setattr(agent, "_call_s3", call)
    agent.store.upload(source, NAME)
    assert sorted(agent.put) == [1, 1, 2, 2, 3, 3]
    expect_whole(client, url, source)


def test_upload_that_somebody_has_ended_begins_anew(url: str, source: Path, client: Any) -> None:
    agent = Agent(url)
    ended: list[str] = []

    def end(method: str, number: int) -> Exception | None:
        if method != "upload_part" or number != 3 or ended:
            return None
        while len(agent.put) < 2:
            time.sleep(0.001)
        (upload,) = client.list_multipart_uploads(Bucket=where(url)["Bucket"])["Uploads"]
        ended.append(upload["UploadId"])
        client.abort_multipart_upload(**where(url), UploadId=upload["UploadId"])
        return FileNotFoundError("NoSuchUpload")  # as s3fs says; the server of the tests has an error of its own

    agent.fails = end
    agent.store.upload(source, NAME)
    assert sorted(agent.put) == [1, 1, 2, 2, 3]
    expect_whole(client, url, source)


def test_completion_whose_answer_was_lost_is_none_the_worse(url: str, source: Path, client: Any) -> None:
    agent = Agent(url)
    agent.after = lambda method, _: FileNotFoundError() if method == "complete_multipart_upload" else None
    agent.store.upload(source, NAME)
    assert sorted(agent.put) == [1, 2, 3]
    expect_whole(client, url, source)


def test_who_may_not_list_uploads_begins_anew(url: str, source: Path, client: Any) -> None:
    agent = Agent(url)
    agent.fails = lambda method, _: PermissionError("Forbidden") if method.startswith("list_") else None
    agent.store.upload(source, NAME)
    expect_whole(client, url, source)


def test_commit_ends_unfinished_uploads_of_its_step_and_of_those_before(
    url: str, client: Any, tmp_path: Path, snapshots: "Snapshots"
) -> None:
    node = StagedCheckpoints(open_objects(PRIMARY, url), tmp_path / "staging", 2)
    bucket, prefix = where(url)["Bucket"], url.removeprefix("s3://").split("/", 1)[1]
    stale = [f"{prefix}/step-000000{step}/rank-00007.shard" for step in (10, 20)]
    others = [f"{prefix}/step-00000030/rank-00000.shard", f"{prefix}-2/step-00000010/rank-00000.shard", "data/x"]
    for key in (*stale, *others):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    write_shard(snapshots.slot(0, 20), node.step_directory(20), run=RUN, world_size=1)
    node.publish(20, 0)
    assert unfinished(client, url) == sorted([*stale, *others])
    assert node.commit_if_complete(20, 1, RUN) is not None
    assert unfinished(client, url) == sorted(others)
    assert node.removal_failures_total == 0


def test_parts_are_no_more_than_a_store_takes(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    for nbytes in (1, 10_000 * PART_BYTES, 10_000 * PART_BYTES + 1, 4 << 40):
        with path.open("wb") as file:
            file.truncate(nbytes)
        assert part_bytes(path) >= PART_BYTES
        assert part_bytes(path) % (1 << 20) == 0
        assert -(-nbytes // part_bytes(path)) <= 10_000
