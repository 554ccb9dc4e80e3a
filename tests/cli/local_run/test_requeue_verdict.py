from typing import Any

import pytest

from holdfast_cli.local_run.requeue_verdict import REPEATED, requeue_code
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store

KILLED = store.DeathDetail(ends=[store.RankEnd(rank=1, cause=store.END_CAUSE_KILLED, signal=9)])
RAISED = store.DeathDetail(ends=[store.RankEnd(rank=1, cause=store.END_CAUSE_FAILED, code=1)])
FELL_OFF = store.DeathDetail(
    ends=[store.RankEnd(rank=1, cause=store.END_CAUSE_FAILED, code=1, gpu_fault=store.GpuFault(xid=79, fatal=True))]
)


def incident(
    kind: "store.VerdictKind",
    generation: int = 1,
    *,
    step: int = 7,
    rank: int = 1,
    aborted: bool = False,
    **detail: Any,
) -> store.Incident:
    verdict = store.Verdict(kind=kind, culprits=[rank], step=step, message="what was seen", **detail)
    made = store.Incident(generation=generation, verdict=verdict, state=store.INCIDENT_STATE_NOTED)
    if aborted:
        made.abort.ranks.add(rank=rank)
    return made


def code_of(*incidents: store.Incident, launcher: int = 1, generation: int = 1, ends_badly: bool = False) -> int:
    return requeue_code(launcher, generation, incidents, ends_badly=ends_badly)[0]


@pytest.mark.parametrize(
    "seen",
    [
        incident(store.VERDICT_KIND_LOST_NODE),
        incident(store.VERDICT_KIND_TRANSPORT),
        incident(store.VERDICT_KIND_DEAD_RANK, death=KILLED),
        incident(store.VERDICT_KIND_DEAD_RANK, death=FELL_OFF),
        incident(store.VERDICT_KIND_HUNG_COLLECTIVE, aborted=True),
    ],
)
def test_an_infrastructure_failure_is_worth_a_requeue(seen: store.Incident) -> None:
    assert code_of(seen) == ExitCode.REQUEUE


def test_a_wrong_configuration_and_a_bad_loss_are_not_worth_one() -> None:
    assert code_of(incident(store.VERDICT_KIND_BAD_CONFIGURATION)) == ExitCode.DO_NOT_REQUEUE
    killed = incident(store.VERDICT_KIND_DEAD_RANK, death=KILLED)
    assert code_of(killed, ends_badly=True) == ExitCode.DO_NOT_REQUEUE


@pytest.mark.parametrize("death", [KILLED, RAISED])
def test_a_rank_that_fails_at_the_same_step_in_three_generations_is_not_worth_one(death: store.DeathDetail) -> None:
    same = [incident(store.VERDICT_KIND_DEAD_RANK, number, death=death) for number in range(1, REPEATED + 1)]
    assert code_of(*same, generation=REPEATED) == ExitCode.DO_NOT_REQUEUE
    elsewhere = incident(store.VERDICT_KIND_DEAD_RANK, 1, step=6, death=death)
    assert code_of(elsewhere, *same[1:], generation=REPEATED) != ExitCode.DO_NOT_REQUEUE
    another = incident(store.VERDICT_KIND_DEAD_RANK, 1, rank=0, death=death)
    assert code_of(another, *same[1:], generation=REPEATED) != ExitCode.DO_NOT_REQUEUE


def test_what_is_not_known_leaves_the_launchers_code() -> None:
    assert code_of(launcher=3) == 3
    assert code_of(incident(store.VERDICT_KIND_DEAD_RANK, death=RAISED), launcher=3) == 3
    assert code_of(incident(store.VERDICT_KIND_LOST_NODE, 1), launcher=3, generation=2) == 3  # it came through that
    over = incident(store.VERDICT_KIND_TRANSPORT)
    over.state = store.INCIDENT_STATE_RESOLVED
    assert code_of(over, launcher=3) == 3


def test_success_is_success_whatever_happened_before() -> None:
    assert code_of(incident(store.VERDICT_KIND_LOST_NODE), launcher=0, ends_badly=True) == 0
