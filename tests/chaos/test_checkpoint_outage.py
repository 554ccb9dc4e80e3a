"""Checkpoints fail for a while and the daemon is killed during that: it is one incident, and training sees nothing."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, VERDICT_KIND_CHECKPOINT_FAILED
from tests.chaos.conftest import PATIENCE_S, Runs, until, until_step
from tests.support.coroutines import wait_until
from tests.support.tmpfs import mounted_tmpfs

pytestmark = pytest.mark.system

ENDLESS = 100_000
"""Number of steps: more than are trained here."""
EVERY = 5
KILLS = 2
MORE = 2
"""Failures that a leader has to add to those that its predecessor reported."""


@dataclass(frozen=True)
class Disk:
    """A file system of the test's own."""

    path: Path

    def fill(self) -> None:
        """Fill the disk."""
        with (self.path / "filler").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass

    def empty(self) -> None:
        """Free the space again."""
        (self.path / "filler").unlink()

    def close(self) -> None:
        """Make the disk read-only, as a kernel does after an error of the device."""
        self._remount("ro")

    def reopen(self) -> None:
        """Make the disk writable again."""
        self._remount("rw")

    def _remount(self, how: str) -> None:
        def done() -> bool:  # while a file is open for writing it is refused
            command = ["mount", "-o", f"remount,{how}", str(self.path)]
            return subprocess.run(command, check=False, capture_output=True).returncode == 0

        wait_until(done, f"{self.path} is remounted")


OUTAGES: dict[str, tuple[Callable[[Disk], None], Callable[[Disk], None]]] = {
    "full": (Disk.fill, Disk.empty),
    "read-only": (Disk.close, Disk.reopen),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_tmpfs(tmp_path / "disk", "32m") as folder:
        yield Disk(folder)


Story = list[tuple[int, str]]


def stories(local: LocalRun) -> list[Story]:
    """Return the failed and committed checkpoints that each incident lists, in its order."""
    found = []
    for incident in local.control.incidents():
        assert incident.verdict.kind == VERDICT_KIND_CHECKPOINT_FAILED
        lines = [incident.verdict.message, *(action.what for action in incident.actions)]
        matches = [re.search(r"checkpoint of step (\d+) (failed|is committed)", line) for line in lines]
        found.append([(int(match[1]), match[2]) for match in matches if match])
    return found


def kill_daemon(local: LocalRun) -> None:
    """SIGKILL the leader and wait for the next one, while training continues."""
    pid, reached = local.stack.pids().get("daemon"), local.status().newest_step
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    pids = local.stack.pids
    until(local, lambda status: status.leader and pids().get("daemon") != pid and status.newest_step > reached)


@pytest.mark.parametrize("outage", [pytest.param("full", marks=pytest.mark.soak), "read-only"])
def test_an_outage_during_which_daemons_are_killed_is_one_incident_until_two_checkpoints_are_committed(
    runs: Runs, disk: Disk, outage: str
) -> None:
    begin, end = OUTAGES[outage]
    name, directory = f"outage-{outage}", disk.path / "checkpoints"
    with runs.run(name, steps=ENDLESS, checkpoint_every=EVERY, checkpoint_directory=directory) as local:
        until(local, lambda status: status.newest_checkpoint >= 0)
        pids = rank_pids(local.status())

        def has_reported(failures: int, of: int = 1) -> bool:
            begin(disk)  # again, because a failed write may free enough space for the next checkpoint
            reported = stories(local)
            return len(reported) == of and len(reported[-1]) >= failures

        until(local, lambda _: has_reported(1))
        for _ in range(KILLS):
            kill_daemon(local)
            known = len(stories(local)[0])
            until(local, lambda _, more=known + MORE: has_reported(more))  # type: ignore[misc]
        end(disk)
        until(local, lambda _: stories(local)[0][-1][1] == "is committed")
        kill_daemon(local)
        first_commit = stories(local)[0][-1][0]
        until(local, lambda status: status.newest_checkpoint > first_commit)
        until(local, lambda _: has_reported(1, of=2))
        end(disk)
        newest = until(local, lambda status: status.newest_checkpoint > stories(local)[1][0][0]).newest_checkpoint
        assert rank_pids(local.status()) == pids
        assert local.status().restarts == 0
        first, second = stories(local)
    failures = [step for step, what in first if what == "failed"]
    assert failures == sorted(set(failures))
    assert len(failures) > KILLS * MORE
    assert first == [*((step, "failed") for step in failures), (first_commit, "is committed")]
    assert second[0][1] == "failed"
    with runs.run(name, hurry=True, steps=newest + EVERY, checkpoint_every=0, checkpoint_directory=directory) as local:
        assert until_step(local, 0).newest_step >= newest
        assert local.wait(timeout_s=PATIENCE_S).phase == RUN_PHASE_FINISHED
        assert stories(local) == []
