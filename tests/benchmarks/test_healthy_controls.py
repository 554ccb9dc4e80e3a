"""Healthy controls: they must reach what they claim to hold up."""

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.harmed_runs.healthy_controls import checkpoint_workers
from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_proto.snapshot import SnapshotError

pytestmark = pytest.mark.system


def test_the_workers_of_checkpoints_are_found(tmp_path: Path) -> None:
    assert checkpoint_workers(os.getpid()) == []
    workers = CheckpointWorkers(1, background=False)
    shard = {"slot": str(tmp_path / "none"), "run": "run", "world_size": 1, "base_step": None, "compression": "always"}
    try:
        with pytest.raises((CheckpointError, SnapshotError)):
            asyncio.run(workers.run("write", directory=tmp_path / "checkpoint", **shard))
        assert len(workers.pids) == 1
        assert checkpoint_workers(os.getpid()) == workers.pids
    finally:
        workers.close()
