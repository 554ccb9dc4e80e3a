"""The kernel kills a rank to free memory, and the verdict rests on the kernel's own message."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_agent.processes.cgroup import memory_events
from holdfast_agent.processes.kernel_log import KernelLog
from holdfast_agent.processes.memory_kills import MemoryKills
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_proto.v1.store_pb2 import VERDICT_KIND_DEAD_RANK, RankExit
from tests.chaos.conftest import Runs, faults, until
from tests.chaos.memory_cgroup import memory_cgroup

pytestmark = pytest.mark.system

LIMIT_BYTES = 192 * 2**20
DOOMED = 0

JOIN_AND_HOARD = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print(flush=True)
sys.stdin.readline()
hoard = []
while True:
    hoard.append(b"x" * 2**20 + b"y")
"""

RANK = f"""
import os, pathlib, sys, time, holdfast_hooks
doomed = os.environ["RANK"] == "{DOOMED}" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
if doomed:
    pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
hoard = []
with holdfast_hooks.attach() as hooks:
    for step in hooks.steps(until=10**6):
        time.sleep(0.02)
        while doomed and step == 20:
            hoard.append(b"x" * 2**20 + b"y")
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    with memory_cgroup(LIMIT_BYTES) as group:
        yield group


def by_the_log() -> MemoryKills:
    try:
        return MemoryKills(KernelLog(), None)
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be read: {error}")


def by_the_count() -> MemoryKills:
    return MemoryKills(None, memory_events())


@pytest.mark.parametrize(("watch", "word"), [(by_the_log, "Killed process {}"), (by_the_count, "oom_kill 1")])
def test_the_kernels_log_and_its_count_each_show_the_kill_alone(
    limited: Path, watch: Callable[[], MemoryKills], word: str
) -> None:
    kills = watch()
    hoarder = subprocess.Popen(
        [sys.executable, "-c", JOIN_AND_HOARD, str(limited)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert hoarder.stdin is not None
    assert hoarder.stdout is not None
    hoarder.stdout.readline()
    kills.note(hoarder.pid)
    hoarder.communicate(b"\n")
    assert hoarder.returncode == -signal.SIGKILL
    ended, other = RankExit(signal=signal.SIGKILL), RankExit(signal=signal.SIGKILL)
    kills.explain(hoarder.pid, ended)
    kills.explain(os.getpid(), other)
    assert ended.out_of_memory
    assert word.format(hoarder.pid) in ended.kernel_line
    assert not other.out_of_memory


def test_a_rank_that_outgrows_its_memory_limit_is_reported_as_killed_for_it_by_the_kernel(
    runs: Runs, limited: Path
) -> None:
    script = runs.folder / "hoarding_rank.py"
    script.write_text(RANK)
    options = runs.options("hoarding", ranks=1)
    command = ("python", str(script), str(limited))
    with LocalRun(dataclasses.replace(options, command=command)) as local:
        until(local, lambda _: bool(faults(local)))
        [incident] = faults(local)
    assert incident.verdict.kind == VERDICT_KIND_DEAD_RANK
    assert list(incident.verdict.culprits) == [DOOMED]
    assert "was killed by SIGKILL (out of memory, says the kernel)" in incident.verdict.message
