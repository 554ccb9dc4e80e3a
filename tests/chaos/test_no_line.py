"""``--auto`` on a script that knows nothing of Holdfast names faults as the five lines do."""

import os
import signal
from pathlib import Path

import pytest

from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import PresetName
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.chaos.conftest import PATIENCE_S, Runs, until, until_step
from tests.chaos.memory_cgroup import memory_cgroup
from tests.chaos.test_observe import ENDLESS, TORCHRUN, assert_names_the_stopped, incidents_in, observed
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

SCRIPT = str(Path(__file__).parent / "plain_ddp.py")
AUTO = ("--auto",)


def automatic(runs: Runs, name: str, *arguments: str, ranks: int = 2) -> LocalRun:
    options = LocalRunOptions(
        run=name,
        command=("python", SCRIPT, *arguments),
        directory=runs.folder,
        ranks=ranks,
        auto=True,
        preset=PresetName.FAST,
        environment={"HOLDFAST_TEST_MARK": runs.mark},
    )
    return LocalRun(options)


def test_a_stopped_and_later_a_killed_rank_under_torchrun_are_named(runs: Runs) -> None:
    with observed(runs, "plain", *TORCHRUN, SCRIPT, ENDLESS, options=AUTO) as watched:
        pids = watched.pids_at_step(10)
        os.kill(pids[1], signal.SIGSTOP)
        assert_names_the_stopped(watched.first_incident(), 1)
        reached = watched.control.status()
        os.kill(pids[1], signal.SIGCONT)
        watched.until(lambda status: status.newest_step > reached.newest_step + 1)
        os.kill(pids[0], signal.SIGKILL)
        code, log = watched.end()
    assert code == 1
    assert "attached by itself, rank 0 of 2" in log
    assert "rank 0 was killed" in log or "rank 0 ended" in log


def test_a_loader_that_brings_no_batch_is_a_data_stall(runs: Runs) -> None:
    with observed(runs, "no-data", *TORCHRUN, SCRIPT, ENDLESS, "data", "1", options=AUTO) as watched:
        pids = watched.pids_at_step(10)
        incident = watched.first_incident()
        assert (incident.verdict.kind, list(incident.verdict.culprits)) == (store.VERDICT_KIND_DATA_STALL, [1])
        assert incident.verdict.step == 30
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        watched.end()


@pytest.mark.gate
@pytest.mark.safety
def test_a_healthy_script_under_torchrun_ends_without_an_incident(runs: Runs) -> None:
    with observed(runs, "healthy", *TORCHRUN, SCRIPT, "60", options=AUTO) as watched:
        code, log = watched.end()
    assert code == 0
    assert "healthy finished, generation 1: finished" in log
    assert "60 steps" in log
    assert incidents_in(log) == set()


def test_a_killed_rank_of_holdfast_run_begins_a_generation_that_counts_anew(runs: Runs) -> None:
    with automatic(runs, "killed", "150") as local:
        status = until_step(local, 40)
        os.kill(status.ranks[1].pid, signal.SIGKILL)
        again = until(local, lambda seen: seen.generation == 2 and seen.newest_step >= 0)
        assert again.newest_step < 40
        last = local.wait(timeout_s=PATIENCE_S)
        assert (last.phase, last.newest_step) == (store.RUN_PHASE_FINISHED, 149)
        dead = [one for one in local.control.incidents() if one.verdict.kind == store.VERDICT_KIND_DEAD_RANK]
        assert [(list(one.verdict.culprits), one.lost_unknown) for one in dead] == [([1], True)]
    assert not (runs.folder / "killed" / "checkpoints").exists() or not runs.checkpoints("killed")


def test_a_slow_rank_is_a_straggler(runs: Runs) -> None:
    with automatic(runs, "slow", ENDLESS, "slow", "2", ranks=4) as local:
        slow = wait_for(
            lambda: [one for one in local.control.incidents() if one.verdict.kind == store.VERDICT_KIND_STRAGGLER],
            "a straggler",
        )[0]
        assert list(slow.verdict.culprits) == [2]
        assert slow.verdict.phase in (common.PHASE_FORWARD_BACKWARD, common.PHASE_UNSPECIFIED)


HOARDING = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
rank, doomed = int(os.environ["RANK"]), 1
if rank == doomed:
    pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.0)
hoard = []
for step in range(10**6):
    time.sleep(0.02)
    while rank == doomed and step == 20:
        hoard.append(b"x" * 2**26)
    weight.grad = torch.ones(4)
    dist.all_reduce(weight.grad)
    optimizer.step()
"""
LIMIT_BYTES = 512 * 2**20
"""More than a rank with torch needs, if it does nothing."""


def test_a_rank_that_the_kernel_kills_for_its_memory_is_reported_so(runs: Runs) -> None:
    script = runs.folder / "hoarding.py"
    script.write_text(HOARDING)
    with (
        memory_cgroup(LIMIT_BYTES) as limited,
        observed(runs, "hoarding", *TORCHRUN, str(script), str(limited), options=AUTO) as watched,
    ):
        code, log = watched.end()
    assert code == 1
    assert "attached by itself, rank 0 of 2" in log
    assert "-dead-rank: rank 1 was killed by SIGKILL (out of memory, says the kernel)" in log
