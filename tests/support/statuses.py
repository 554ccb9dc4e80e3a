"""Statuses of a run of four ranks, as a daemon would report them."""

from holdfast_proto.v1.common_pb2 import PHASE_FORWARD_BACKWARD
from holdfast_proto.v1.control_pb2 import RANK_HEALTH_STALLED, RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_RECOVERED,
    LIFE_EXITED,
    LIFE_RUNNING,
    RUN_PHASE_RUNNING,
    VERDICT_KIND_HUNG_COLLECTIVE,
    Incident,
    IncidentAction,
    RankExit,
    Verdict,
)


def healthy(ranks: int = 4) -> RunStatus:
    return RunStatus(
        run="llama",
        phase=RUN_PHASE_RUNNING,
        generation=2,
        newest_step=41,
        loss=2.34567,
        tokens_per_s=12345.6,
        newest_checkpoint=39,
        newest_snapshot=41,
        leader=True,
        store_up=True,
        deadline_s=1.5,
        now_unix_s=1000.0,
        ranks=[
            RankView(
                rank=rank,
                node="local",
                life=LIFE_RUNNING,
                step=42,
                phase=PHASE_FORWARD_BACKWARD,
                process_state="S",
                coordinates={"pp": rank // 2, "tp": rank % 2},
                pid=1000 + rank,
            )
            for rank in range(ranks)
        ],
    )


def resumed(after_step: int, *, newest: int, now: int) -> RunStatus:
    """A run that continued after ``after_step`` and is in step ``now``; ``newest`` is the newest step that it had."""
    status = healthy()
    status.resumed_step, status.newest_step = after_step, newest
    for view in status.ranks:
        view.step = now
    return status


def killed(rank: int, status: RunStatus | None = None) -> RunStatus:
    status = status or healthy()
    status.ranks[rank].life = LIFE_EXITED
    status.ranks[rank].exit.CopyFrom(RankExit(signal=9))
    return status


def stopped(rank: int) -> RunStatus:
    status = healthy()
    status.ranks[rank].process_state = "T"
    for view in status.ranks:
        view.stalled_s, view.health = 2.0, RANK_HEALTH_STALLED
    return status


def with_incident(status: RunStatus, *, recovered: bool = False) -> RunStatus:
    status.incidents = 1
    status.newest_incident.CopyFrom(
        Incident(
            id="i-1",
            run="llama",
            verdict=Verdict(kind=VERDICT_KIND_HUNG_COLLECTIVE, culprits=[2], message="rank 2 is stopped in step 42"),
            detected_unix_s=100.0,
            state=INCIDENT_STATE_RECOVERED if recovered else INCIDENT_STATE_OPEN,
            actions=[IncidentAction(unix_s=100.25, what="stop generation 2")],
            recovered_unix_s=103.5 if recovered else 0,
            lost_steps=1,
        )
    )
    return status
