"""Runs to look at: statuses of many ranks, healthy and hung."""

from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_FORWARD_BACKWARD

CULPRIT = 11
NOW = 1_760_000_000.0


def wide(pp: int = 2, dp: int = 4, tp: int = 4, *, step: int = 1204) -> control.RunStatus:
    """A healthy run of a mesh, with eight ranks on each node."""
    ranks = [
        control.RankView(
            rank=rank,
            node=f"node-{rank // 8:03}",
            life=store.LIFE_RUNNING,
            step=step,
            phase=PHASE_FORWARD_BACKWARD,
            process_state="S",
            coordinates={"pp": rank // (dp * tp), "dp": rank // tp % dp, "tp": rank % tp},
            pid=4000 + rank,
            memory_bytes=(40 + rank % 7) << 30,
            memory_limit_bytes=80 << 30,
        )
        for rank in range(pp * dp * tp)
    ]
    return control.RunStatus(
        run="llama-7b", phase=store.RUN_PHASE_RUNNING, generation=2, newest_step=step - 1, loss=2.3457 - step / 1e4,
        grad_norm=0.4123, learning_rate=3e-4, tokens_per_s=412_345.6 + step % 5 * 1000, newest_checkpoint=1200,
        newest_snapshot=step - 1, restarts=1, leader=True, store_up=True, deadline_s=8.5, now_unix_s=NOW, ranks=ranks,
        settings=control.RunSettings(mode=store.MODE_ACT, ranks_per_node=8),
    )  # fmt: skip


def hung(culprit: int = CULPRIT) -> control.RunStatus:
    """The same run after one rank has hung in its data loader, and all others wait for it."""
    status = wide()
    for rank in status.ranks:
        rank.stalled_s, rank.health = 21.4, control.RANK_HEALTH_WAITING
    status.ranks[culprit].health = control.RANK_HEALTH_STALLED
    status.ranks[culprit].phase = PHASE_DATA
    waiters = [rank for rank in range(8, 12) if rank != culprit]
    waits = [store.WaitEdge(waiter=rank, awaited=culprit, group="mesh_tp", seq=96, op="all_reduce") for rank in waiters]
    status.incidents = 1
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_HUNG_COLLECTIVE, culprits=[culprit], waits=waits, step=1204, phase=PHASE_DATA,
        group="mesh_tp", seq=96, op="all_reduce", confidence_ratio=0.97,
        message=f"rank {culprit} on node-001 hangs in step 1204, in data: train.py:88 waits for a file",
    )  # fmt: skip
    found = store.Incident(id="0001-hung-collective", run="llama-7b", generation=2, verdict=verdict)
    found.detected_unix_s, found.last_progress_unix_s = NOW - 12.0, NOW - 21.4
    found.state = store.INCIDENT_STATE_STANDSTILL
    found.actions.add(unix_s=NOW - 11.6, what="gathered evidence of 32 ranks")
    status.newest_incident.CopyFrom(found)
    status.urgent_incident.CopyFrom(status.newest_incident)
    return status
