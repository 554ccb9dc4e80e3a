"""Fixtures for the tests of the agent's checkpoints: snapshots, places, stores."""

from tests.support.s3_server import client, s3_endpoint, server, small_parts, strict_server, url
from tests.support.snapshots import checkpoints, small_tmpfs, snapshots

__all__ = [
    "checkpoints",
    "client",
    "s3_endpoint",
    "server",
    "small_parts",
    "small_tmpfs",
    "snapshots",
    "strict_server",
    "url",
]
