"""The end of a run says it if no rank has attached, and only then."""

import pytest

from holdfast_cli.views.attachment import NEVER_ATTACHED, AttachmentWatch
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    LIFE_EXITED,
    LIFE_RUNNING,
    LIFE_STARTING,
    VERDICT_KIND_BAD_CONFIGURATION,
    Incident,
    RankExit,
    Verdict,
)


def status(*ranks: RankView, newest_step: int = -1) -> RunStatus:
    return RunStatus(run="r", newest_step=newest_step, ranks=ranks)


STARTING = RankView(life=LIFE_STARTING)
RUNNING = RankView(life=LIFE_RUNNING)
NEVER = RankView(life=LIFE_EXITED, exit=RankExit(code=0, never_attached=True))
KILLED = RankView(life=LIFE_EXITED, exit=RankExit(signal=9, never_attached=True))
ENDED = RankView(life=LIFE_EXITED, exit=RankExit(code=1))


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


def test_a_refusal_says_itself_why_no_rank_attached() -> None:
    watch = AttachmentWatch()
    refused = status(NEVER)
    refused.newest_incident.CopyFrom(Incident(verdict=Verdict(kind=VERDICT_KIND_BAD_CONFIGURATION)))
    watch.see(refused)
    assert watch.line() == ""
