"""Uploads in parts, to a server that speaks S3."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.store.locations import PRIMARY, open_objects
from holdfast_checkpoint.store.multipart import PART_BYTES, etag_of, part_bytes
from holdfast_checkpoint.store.object_store import ObjectStore
from holdfast_checkpoint.store.retries import Retries
from tests.support.object_places import QUICK

if TYPE_CHECKING:
    pass

NAME = "step-00000010/rank-00000.shard"
Fails = Callable[[str, int], Exception | None]


class Agent:
    """A process that uploads. It records its parts, and fails before or after a call if a test wants it."""

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
    """Check that the object equals the file and that no upload is left unfinished."""
    found = client.get_object(**where(url))
    assert found["Body"].read() == source.read_bytes()
    assert unfinished(client, url) == []


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


def test_an_upload_that_fails_leaves_no_parts_behind(url: str, source: Path, client: Any) -> None:
    agent = Agent(url)
    agent.fails = lambda method, number: PermissionError("quota") if method == "upload_part" and number > 1 else None
    with pytest.raises(CheckpointError, match="access denied"):
        agent.store.upload(source, NAME)
    assert agent.put == [1]
    assert unfinished(client, url) == []


def test_who_may_not_end_uploads_gets_the_first_error(url: str, source: Path, client: Any) -> None:
    agent = Agent(url)
    errors = {"upload_part": PermissionError("quota"), "abort_multipart_upload": ValueError("not allowed")}
    agent.fails = lambda method, _: errors.get(method)
    with pytest.raises(CheckpointError, match="access denied"):
        agent.store.upload(source, NAME)
    assert unfinished(client, url) == [where(url)["Key"]]


def test_an_upload_that_failed_begins_again(url: str, source: Path, client: Any) -> None:
    agent = Agent(url)
    errors: list[Exception] = [OSError("reset by peer"), TimeoutError("no answer")]
    agent.fails = lambda method, number: errors.pop() if method == "upload_part" and number == 2 and errors else None
    agent.store.upload(source, NAME)
    assert agent.put.count(2) == 1
    assert agent.put.count(1) == 3
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


def test_upload_that_another_process_has_ended_begins_anew(url: str, source: Path, client: Any) -> None:
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
        return FileNotFoundError("NoSuchUpload")  # the words of s3fs; the server of the tests has an error of its own

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


def test_parts_are_no_more_than_a_store_takes(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    for nbytes in (1, 10_000 * PART_BYTES, 10_000 * PART_BYTES + 1, 4 << 40):
        with path.open("wb") as file:
            file.truncate(nbytes)
        assert part_bytes(path) >= PART_BYTES
        assert part_bytes(path) % (1 << 20) == 0
        assert -(-nbytes // part_bytes(path)) <= 10_000
