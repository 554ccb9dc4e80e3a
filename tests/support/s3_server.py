"""A server that speaks S3, for tests."""

import os
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast_checkpoint.store import multipart, object_store


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of a server at a free port."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def server(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server's URL. The environment has it, too."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return s3_endpoint


@pytest.fixture
def client(server: str) -> Any:
    """A client of the server that uses none of our code."""
    import boto3

    return boto3.client("s3", endpoint_url=server)


@pytest.fixture
def url(client: Any) -> str:
    """URL of a run's place in a bucket of the test's own."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/big/run"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of an upload's parts: as few as S3 allows."""
    nbytes = 5 << 20
    for module in (multipart, object_store):
        monkeypatch.setattr(module, "PART_BYTES", nbytes)
    return nbytes


@pytest.fixture
def strict_server(server: str, url: str) -> Iterator[str]:
    """The server's URL. From now on the server refuses all credentials."""

    def let_in(requests: str) -> None:
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{server}/moto-api/reset-auth", requests.encode(), headers)
        urllib.request.urlopen(request).close()

    let_in("0")
    yield server
    let_in("inf")
