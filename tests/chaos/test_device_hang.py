"""The whole way of a hang on devices: recorder, hooks, agent, daemon, incident, restart.

The ranks have no GPU. A stand-in for NCCL's group and its recorder has calls that complete once all ranks have made
them, and hosts that run ahead. A stand-in for NCCL's RAS is asked about them. Everything else is real.
"""

import json
import socket
from functools import partial
from pathlib import Path

import pytest

from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_RECOVERED,
    RUN_PHASE_FINISHED,
    VERDICT_KIND_HUNG_COLLECTIVE,
    Incident,
)
from tests.chaos.conftest import PATIENCE_S, faults, local_run_of
from tests.support.ras_server import served, speaking

pytestmark = pytest.mark.system

RANKS = 3
RANK = """
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as bindings
import holdfast_hooks

RANKS, AHEAD = 3, 5
rank, folder, start = int(os.environ["RANK"]), Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"]
made = 0

def of(number):
    path = folder / f"{start}-{number}"
    return int(path.read_text()) if path.exists() else 0

def completed():
    return min(of(number) for number in range(RANKS))

class Backend:
    uid = 0
    def name(self):
        return "nccl"
    def _get_sequence_number_for_group(self):
        return made

class Group:
    group_name, group_desc, _device_types = "0", "default_pg", ["cuda"]
    backend = Backend()
    def _get_backend(self, device):
        return self.backend

def dump(collectives, only_active):
    done = min(completed(), made)
    numbers = zip(("enqueued", "started", "completed"), (made, -1, done))
    status = {f"last_{name}_collective": str(number) for name, number in numbers}
    document = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}}
    document["pg_status"] = {"0": status} if made else {}
    if collectives:
        document["entries"] = [
            {"record_id": seq - 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq,
             "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:all_reduce", "is_p2p": False,
             "state": "completed" if seq <= done else "scheduled", "retired": seq <= done,
             "input_sizes": [[4]], "input_dtypes": ["Float"], "time_created_ns": seq}
            for seq in range(1, made + 1)
        ]
    return json.dumps(document).encode()

def call():
    global made
    made += 1
    new = folder / f"{start}-{rank}.new"
    new.write_text(str(made))
    new.rename(folder / f"{start}-{rank}")
    while made - completed() > AHEAD:  # the queue of the device is full
        time.sleep(0.01)

(folder / f"{start}-{rank}.pid").write_text(str(os.getpid()))
dist.init_process_group("gloo")
group, ranks_of = Group(), dist.get_process_group_ranks
dist.get_process_group_ranks = lambda one: list(range(RANKS)) if one is group else ranks_of(one)
c10d._world.pg_map[group] = ("nccl", None)
bindings._dump_nccl_trace_json, torch.__version__ = dump, "2.14.1"
del bindings._WorkerServer  # with NCCL in the build it would dump the real recorder, which is empty here
with holdfast_hooks.attach() as hooks:
    for step in hooks.steps(until=40):
        if step == 20 and rank == 1 and start == "1":
            while True:
                time.sleep(0.1)
        call()
        time.sleep(0.02)
del c10d._world.pg_map[group]
dist.destroy_process_group()
"""


def ras_of(folder: Path, connection: socket.socket) -> None:
    """Report the ranks of the first start: rank 1 does not answer, and that is all that RAS knows of it."""

    def member(rank: int, status: dict[str, int | bool]) -> dict[str, object]:
        pid = int((folder / f"1-{rank}.pid").read_text())
        return {"rank": rank, "host": "10.0.0.1", "pid": pid, "status": status, "collective_counts": {}}

    healthy = {"init_state": 0, "async_error": 0, "abort_flag": False}
    world = {
        "size": RANKS,
        "ranks": [member(rank, healthy) for rank in (0, 2)],
        "missing_ranks": [member(1, {"unresponsive": True, "considered_dead": False})],
    }
    speaking(json.dumps({"communicators": [world]}, indent=8).encode())(connection)


def hung(tmp_path: Path, folder: Path, ras: str) -> tuple[Incident, list[str]]:
    """Return the incident of the hang, of a run that has recovered and finished, and the lines of all stories."""
    options = {"ranks": RANKS, "restart_patience": 0.1, "environment": {"NCCL_RAS_ADDR": ras}}
    with local_run_of(RANK, "devices", tmp_path, str(folder), **options) as local:
        status = local.wait(timeout_s=PATIENCE_S)
        assert status.phase == RUN_PHASE_FINISHED, status.outcome
        found = faults(local)
    # A busy machine may report a standstill before it has the recorders' dumps.
    [incident] = [one for one in found if one.state == INCIDENT_STATE_RECOVERED]
    return incident, [action.what for one in found for action in one.actions]


@pytest.mark.gate
def test_the_rank_that_has_not_made_the_call_is_named_by_the_recorders_and_restarted(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    with served(partial(ras_of, folder)) as (host, port):
        incident, story = hung(tmp_path, folder, f"{host}:{port}")
    verdict = incident.verdict
    assert (verdict.kind, list(verdict.culprits)) == (VERDICT_KIND_HUNG_COLLECTIVE, [1])
    assert (verdict.group, verdict.seq, verdict.op) == ("0", 21, "all_reduce")
    assert verdict.message.endswith(
        "; ranks 0, 2 wait for it in all_reduce 21 of group 0 (default_pg) (by the ranks' recorders)"
    )
    assert list(verdict.device_call.why) == ["rank 1 has no call of its own pending, and its newest call there is 20"]
    assert "rank-00001.flight_recorder_nccl.json" in {Path(name).name for name in incident.evidence}
    assert "NCCL's RAS says of rank 1: its process gives no answer" in story
