"""The end of a run says it if no rank has attached, and only then."""

import pytest

from holdfast_cli.views.attachment import LATE_S, NEVER_ATTACHED, AttachmentWatch
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RankView, RunStatus


def status(*ranks: RankView, newest_step: int = -1) -> RunStatus:
    return RunStatus(run="r", newest_step=newest_step, ranks=ranks)


STARTING = RankView(life=store.LIFE_STARTING)
RUNNING = RankView(life=store.LIFE_RUNNING)
NEVER = RankView(life=store.LIFE_EXITED, exit=store.RankExit(code=0, never_attached=True))
KILLED = RankView(life=store.LIFE_EXITED, exit=store.RankExit(signal=9, never_attached=True))
ENDED = RankView(life=store.LIFE_EXITED, exit=store.RankExit(code=1))


@pytest.mark.parametrize(
    ("seen", "is_said"),
    [
        ([status(STARTING, STARTING), status(NEVER, STARTING), status()], True),
        ([status(RUNNING, STARTING), status(NEVER, NEVER)], False),
        ([status(NEVER, NEVER), status(ENDED, NEVER)], False),
        ([status(newest_step=3), status(NEVER)], False),
        ([status(KILLED, STARTING), status(KILLED, KILLED)], False),  # before they had the time
        ([status(KILLED, NEVER)], True),
        ([status(STARTING), status()], False),  # stopped before a rank had the time
    ],
)
def test_a_run_without_attach_says_so(seen: list[RunStatus], is_said: bool) -> None:
    watch = AttachmentWatch()
    for one in seen:
        watch.see(one)
    assert watch.line() == (NEVER_ATTACHED if is_said else "")


def test_ranks_that_never_attached_are_named_if_others_did() -> None:
    watch = AttachmentWatch()
    watch.see(status(RUNNING, STARTING, newest_step=3))
    assert watch.line() == ""
    good = RankView(life=store.LIFE_EXITED, exit=store.RankExit(code=0))
    never = RankView(rank=1, life=store.LIFE_EXITED, exit=store.RankExit(code=0, never_attached=True))
    watch.see(status(good, never, newest_step=3))
    assert watch.line().startswith("rank 1 has never called holdfast_hooks.attach(), so no checkpoint is complete")
    watch.see(status(good, good, newest_step=3))
    assert watch.line() == ""


def test_a_refusal_says_itself_why_no_rank_attached() -> None:
    watch = AttachmentWatch()
    refused = status(NEVER)
    refused.newest_incident.CopyFrom(store.Incident(verdict=store.Verdict(kind=store.VERDICT_KIND_BAD_CONFIGURATION)))
    watch.see(refused)
    assert watch.line() == ""


def test_ranks_that_do_not_attach_for_long_are_reported_once_if_there_is_a_state() -> None:
    def lines(*seen: tuple[float, RunStatus]) -> list[str]:
        watch, found = AttachmentWatch(), []
        for now_unix_s, one in seen:
            one.now_unix_s = 1e9 + now_unix_s
            watch.see(one)
            found.append(watch.late_line(one))
        return [line for line in found if line]

    def resumed(*ranks: RankView) -> RunStatus:
        return RunStatus(run="r", newest_step=39, ranks=ranks, resumed_step=39)

    late, more = LATE_S + 1.0, LATE_S + 2.0
    (line,) = lines((0.0, resumed(STARTING)), (late, resumed(STARTING)), (more, resumed(STARTING)))
    assert "for 3 minutes, so the state of step 39 is not used yet" in line
    assert not lines((0.0, resumed(STARTING)), (LATE_S - 1.0, resumed(STARTING)))
    assert not lines((0.0, status(STARTING)), (late, status(STARTING)))
    assert not lines((0.0, resumed(STARTING)), (late, resumed(STARTING, RUNNING)), (more, resumed(STARTING)))
    assert not lines((0.0, resumed(STARTING)), (1.0, resumed()), (late, resumed(STARTING)))
