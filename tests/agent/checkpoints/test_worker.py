from pathlib import Path

import pytest

from holdfast_agent.checkpoints import worker
from holdfast_agent.checkpoints.worker import CoreShare
from holdfast_checkpoint.format.shard_index import step_directory
from holdfast_proto.snapshot import Slot
from tests.checkpoint.conftest import contents
from tests.support.snapshots import Snapshots


class Clock:
    """The times that the kernel reports of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran_s = self.waited_s = 100.0
        monkeypatch.setattr(worker, "monotonic", lambda: self.ran_s + self.waited_s)
        monkeypatch.setattr(worker, "_cpu_times_s", lambda: (self.ran_s, self.waited_s))

    def advance(self, *, ran_s: float, waited_s: float) -> None:
        self.ran_s += ran_s
        self.waited_s += waited_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    "looks",
    [
        [(0.0, 0.0, True), (0.1, 0.05, True), (0.1, 0.2, False)],
        [(1.0, 20.0, False), (0.1, 0.0, True)],  # only what was lately counts
        [(0.0, 0.01, True), (0.0, 0.015, False), (0.01, 0.0, False)],  # too short a time to judge by
    ],
)
def test_it_is_enough_until_the_process_has_waited_for_longer_than_it_ran(
    clock: Clock, looks: list[tuple[float, float, bool]]
) -> None:
    share = CoreShare()
    for ran_s, waited_s, is_enough in looks:
        clock.advance(ran_s=ran_s, waited_s=waited_s)
        assert share.is_enough() == is_enough, (ran_s, waited_s)


def test_a_kernel_that_does_not_count_this_is_taken_for_one_with_cores_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_cpu_times_s", lambda: (0.0, 0.0))
    assert CoreShare().is_enough()


def test_the_kernel_counts_the_time_that_this_thread_has_run() -> None:
    ran_s, waited_s = worker._cpu_times_s()
    assert ran_s > 0
    assert waited_s >= 0


def test_a_replica_snapshot_is_written_and_restored(snapshots: Snapshots, tmp_path: Path) -> None:
    slot, directory = snapshots.slot(1, 5), step_directory(tmp_path, 5)
    arguments = {"slot": str(slot), "directory": str(directory)}
    job = {"run": "run", "world_size": 2, "base_step": None, "compression": "always", **arguments}
    assert worker._answer({"task": "write_replica", "arguments": job}) == {}
    found = contents(slot)
    with Slot(slot) as mapped:
        mapped.invalidate()
    assert worker._answer({"task": "restore_replica", "arguments": {"rank": 1, "generation": 2, **arguments}}) == {}
    assert contents(slot) == found
