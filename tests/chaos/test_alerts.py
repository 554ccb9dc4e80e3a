"""Alerts under their real faults: a run is harmed, a real Prometheus scrapes it, and the alert fires.

promtool alone tests these. HoldfastAllocatorRetries needs a GPU. HoldfastMemoryCreep needs hours, or a leak of more
memory than a test may take. HoldfastNonFiniteNumbers needs a gradient that spoils no loss. HoldfastRestartsGivenUp,
HoldfastLateExit, HoldfastCheckpointOverdue and the critical HoldfastRunHung need minutes of their fault.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.control import rank_pids
from holdfast_cli.fault_injection import request_fault
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.settings.schema import ModeName
from holdfast_hooks.faults import Fault
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FAILED, RUN_PHASE_RUNNING
from tests.chaos.conftest import Runs, until, until_step
from tests.chaos.test_checkpoint_outage import Disk
from tests.chaos.test_dashboards import targets_of
from tests.support.local_runs import resume_restart, suspend_restart
from tests.support.prometheus_server import Prometheus, needs_prometheus, prometheus_server
from tests.support.tmpfs import mounted_tmpfs

pytestmark = [pytest.mark.system, needs_prometheus]

FOUND_PATIENCE_S = 240.0
Alert = tuple[str, str]
"""Name and severity."""


@contextmanager
def watched(runs: Runs, folder: Path, name: str, **options: Any) -> Iterator[tuple[LocalRun, Prometheus]]:
    """Yield a run of two ranks that hold the same weights, and a Prometheus that scrapes it."""
    settings = {
        "ranks": 2,
        "flags": ("--parallel.pp=1", "--parallel.zero=0"),
        "steps": 100_000,
        "checkpoint_every": 0,
        **options,
    }
    with runs.run(name, **settings) as local, prometheus_server(folder, targets_of(local)) as prometheus:
        yield local, prometheus


def expect(prometheus: Prometheus, *alerts: Alert) -> None:
    """Wait until each alert has fired."""
    labels = 'alertname="{}",severity="{}",alertstate="firing"'
    fired = [(name, f"ALERTS{{{labels.format(name, severity)}}}") for name, severity in alerts]
    assert prometheus.queries_without_data(fired, deadline_s=FOUND_PATIENCE_S) == []


def odd(runs: Runs, name: str, steps: str) -> dict[str, str]:
    """Return the environment of a run that is odd in some steps: see paced/."""
    return {**runs.options(name).environment, "PACED_ODD": steps}


def test_odd_numbers_alert(runs: Runs, tmp_path: Path) -> None:
    steps = "samples@20-23 explosion@80-90 spike@160-170 no-loss@240-360 overflow@400-430"
    settings = {"hurry": True, "environment": odd(runs, "odd-numbers", steps)}
    with watched(runs, tmp_path, "odd-numbers", **settings) as (local, prometheus):
        until_step(local, 440)
        expect(
            prometheus,
            ("HoldfastDuplicateSamples", "warning"),
            ("HoldfastGradientExplosion", "warning"),
            ("HoldfastLossSpike", "warning"),
            ("HoldfastNonFiniteLoss", "critical"),
            ("HoldfastOverflowLoop", "critical"),
        )


def test_harmed_ranks_alert(runs: Runs, tmp_path: Path) -> None:
    with watched(runs, tmp_path, "harmed", hurry=True, faults_allowed=True) as (local, prometheus):
        until_step(local, 20)
        request_fault(local.control, Fault("bit-flip", rank=1))
        expect(prometheus, ("HoldfastSilentCorruption", "critical"))
        request_fault(local.control, Fault("stop", rank=1))
        expect(prometheus, ("HoldfastRunHung", "warning"))
        reached = until(local, lambda status: status.generation == 2 and status.phase == RUN_PHASE_RUNNING).newest_step
        until_step(local, reached + 2)
        request_fault(local.control, Fault("nan-gradient", rank=1))
        expect(prometheus, ("HoldfastNonFiniteLoss", "critical"))


def test_a_slow_rank_alerts(runs: Runs, tmp_path: Path) -> None:
    with watched(runs, tmp_path, "slow-rank", hurry=True, faults_allowed=True) as (local, prometheus):
        until_step(local, 200)
        request_fault(local.control, Fault("slow", rank=1, factor=6.0))
        expect(prometheus, ("HoldfastStraggler", "warning"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_tmpfs(tmp_path / "disk", "32m") as folder:
        yield Disk(folder)


@pytest.mark.soak
def test_a_dead_rank_pages_in_mode_observe_and_components_that_are_down_alert(
    runs: Runs, tmp_path: Path, disk: Disk
) -> None:
    checkpoints = {"checkpoint_every": 5, "checkpoint_directory": disk.path / "checkpoints"}
    with watched(runs, tmp_path, "left-down", mode=ModeName.OBSERVE, **checkpoints) as (local, prometheus):
        until(local, lambda status: status.newest_checkpoint >= 0)
        disk.fill()
        expect(prometheus, ("HoldfastCheckpointFailed", "warning"))
        disk.empty()
        os.kill(rank_pids(local.status())[1], signal.SIGKILL)
        expect(prometheus, ("HoldfastRankDead", "warning"), ("HoldfastRankDead", "critical"))
        pids = local.stack.pids()
        down = {"agent": ("HoldfastAgentDown", "warning"), "daemon": ("HoldfastDaemonDown", "critical")}
        for component, alert in down.items():
            suspend_restart(local, component)
            os.kill(pids[component], signal.SIGKILL)
            expect(prometheus, alert)
        for component in down:
            resume_restart(local, component)


def test_a_wrong_configuration_alerts(runs: Runs, tmp_path: Path) -> None:
    flags = ("--parallel.pp=1", "--train.global_batch=3")
    with watched(runs, tmp_path, "wrong", steps=10, flags=flags) as (local, prometheus):
        until(local, lambda status: status.phase == RUN_PHASE_FAILED)
        expect(prometheus, ("HoldfastBadConfiguration", "critical"))


@pytest.mark.soak
def test_slow_data_warns_and_neither_pages_nor_restarts_the_run(runs: Runs, tmp_path: Path) -> None:
    settings = {"hurry": True, "environment": odd(runs, "slow-data", "slow-data@200-100000")}
    with watched(runs, tmp_path, "slow-data", **settings) as (local, prometheus):
        expect(prometheus, ("HoldfastSlowData", "warning"), ("HoldfastThroughputDrop", "warning"))
        assert prometheus.query('ALERTS{alertname="HoldfastRunHung"}') == []
        assert local.status().generation == 1
