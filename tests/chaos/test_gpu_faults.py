"""The whole way of a GPU's error: driver and kernel's log, agent, daemon, incident, restart. And that of a slow GPU.

The ranks compute on the CPU and say that they are on GPUs. A stand-in for the driver's library has these GPUs.
"""

import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from holdfast_cli.local_run import command_lines
from holdfast_cli.run_folder.record import find_record
from holdfast_proto.run_files import rank_log
from holdfast_proto.v1.common_pb2 import OWN_TIME_SOURCE_EVENTS
from holdfast_proto.v1.store_pb2 import (
    RUN_PHASE_FINISHED,
    SLOW_SIDE_HOST,
    VERDICT_KIND_HUNG_COLLECTIVE,
    VERDICT_KIND_STRAGGLER,
)
from tests.chaos.conftest import PATIENCE_S, faults, local_run_of, until
from tests.support.exposition import samples
from tests.support.fake_nvml import FakeNvml
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

RANK = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import holdfast_hooks
from holdfast_hooks.telemetry.device_memory import RankMemory

rank = int(os.environ["RANK"])
RankMemory.uuid = lambda self: f"GPU-{rank}"
dist.init_process_group("gloo")
with holdfast_hooks.attach() as hooks:
    for step in hooks.steps(until=60):
        if step == 20 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            Path(sys.argv[1]).write_text(str(os.getpid()))
            while True:  # a thread that waits for its GPU spins
                pass
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
dist.destroy_process_group()
"""

SLOW_RANK = """
import os, time
import torch, torch.distributed as dist
import holdfast_hooks
from holdfast_hooks.device_time import device_time
from holdfast_hooks.telemetry.device_memory import RankMemory

rank = int(os.environ["RANK"])


class Marks:  # of a GPU that does what its host does
    mark = staticmethod(time.monotonic)

    def is_past(self, mark):
        return True

    def between_s(self, start, end):
        return end - start

    def give_back(self, marks):
        pass


RankMemory.uuid = lambda self: f"GPU-{rank}"
torch.cuda.is_initialized = lambda: True
device_time.CudaMarks = Marks
dist.init_process_group("gloo")
with holdfast_hooks.attach(device=f"cuda:{rank}") as hooks:
    for step in hooks.steps(until=10_000):
        time.sleep(0.4 if rank == 1 else 0.2)
        dist.all_reduce(torch.ones(1))
"""


def machine_with(gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeNvml, dict[str, str]]:
    """Return a stand-in for the driver, and the environment of a command on a machine that has it."""
    nvml = FakeNvml(tmp_path / "nvml", gpus=gpus)
    (tmp_path / "machine/dev").mkdir(parents=True)
    (tmp_path / "machine/dev/nvidiactl").touch()
    (tmp_path / "machine/dev/kmsg").touch()
    monkeypatch.setattr(command_lines, "HOLDFAST", (sys.executable, "-m", "tests.support.gpu_machine"))
    return nvml, {**nvml.environment, "GPU_MACHINE": str(tmp_path / "machine")}


def test_a_slow_rank_whose_gpu_has_little_to_do_is_named_and_points_to_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, environment = machine_with(4, tmp_path, monkeypatch)
    for gpu in range(4):
        nvml.set(gpu, utilization=40 if gpu == 1 else 100)
    with local_run_of(SLOW_RANK, "slow", tmp_path, ranks=4, environment=environment) as local:
        status = until(local, lambda status: status.newest_incident.verdict.kind == VERDICT_KIND_STRAGGLER)
        verdict = status.newest_incident.verdict
        port = find_record(tmp_path / "runs", "slow").components["agent"]["metrics_port"]
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    assert list(verdict.culprits) == [1]
    assert verdict.straggler.side == SLOW_SIDE_HOST
    assert verdict.message.endswith(
        "; its GPU 1 runs kernels 40% of the time, those of its peers 100%: that points to its host"
    )
    assert {rank.own_time_source for rank in status.ranks} == {OWN_TIME_SOURCE_EVENTS}
    shown = samples(text, "holdfast_rank_own_time_info", "rank", "source")
    assert shown == {(str(rank), "events"): 1 for rank in range(4)}


def test_a_rank_that_hangs_because_its_gpu_is_lost_is_named_with_that_and_restarted_without_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, environment = machine_with(2, tmp_path, monkeypatch)
    nvml.set(1, temperature=64)
    log = tmp_path / "machine/dev/kmsg"
    hangs = tmp_path / "hangs"
    with local_run_of(RANK, "gpus", tmp_path, str(hangs), ranks=2, environment=environment) as local:
        pid = wait_for(lambda: hangs.exists() and hangs.read_text(), "the rank that hangs")
        nvml.set(1, lost=1, pids=pid)
        with log.open("a") as kernel:
            kernel.write(
                f"4,1,1,-;NVRM: Xid (PCI:0000:42:00): 79, pid={pid}, name=python, GPU has fallen off the bus.\n"
            )
        until(local, lambda status: status.incidents >= 1)
        port = find_record(tmp_path / "runs", "gpus").components["agent"]["metrics_port"]
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        assert samples(text, "holdfast_gpu_xid_errors_total", "gpu", "UUID", "xid") == {("1", "GPU-1", "79"): 1}
        assert samples(text, "holdfast_gpu_up", "gpu")[("0",)] == 1
        # The driver has not freed the memory of the killed rank yet: the new one must not start.
        nvml.set(1, lost=None)
        until(local, lambda status: status.generation == 2)
        time.sleep(1.0)
        new_log = rank_log(tmp_path / "runs/gpus", 2, 1)
        assert not new_log.exists()
        nvml.set(1, pids=None)
        status = local.wait(timeout_s=PATIENCE_S)
        assert status.phase == RUN_PHASE_FINISHED, status.outcome
        assert new_log.exists()
        [incident] = faults(local)
    assert (incident.verdict.kind, list(incident.verdict.culprits)) == (VERDICT_KIND_HUNG_COLLECTIVE, [1])
    assert "after Xid 79 on its GPU 1 (the GPU has fallen off the bus)" in incident.verdict.message
    assert any("restart: rank 1 stands still, after Xid 79" in action.what for action in incident.actions)
