"""Fixtures for the tests of checkpoints: snapshots, places, stores."""

from tests.support.coroutines import pytest_pyfunc_call
from tests.support.s3_server import client, s3_endpoint, server, small_parts, strict_server, url
from tests.support.snapshots import checkpoints, small_tmpfs, snapshots

__all__ = [
    "checkpoints",
    "client",
    "pytest_pyfunc_call",
    "s3_endpoint",
    "server",
    "small_parts",
    "small_tmpfs",
    "snapshots",
    "strict_server",
    "url",
]
