"""Fixtures for the tests of slots."""

from tests.support.snapshots import checkpoints, small_tmpfs, snapshots

__all__ = ["checkpoints", "small_tmpfs", "snapshots"]
