import math
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.reports import message_checks
from holdfast_agent.reports.message_checks import clean_hello, clean_report, flaw_of_hello, flaw_of_slots
from holdfast_agent.reports.summaries import StepSummaries
from holdfast_daemon.validation.message_rules import check_event
from holdfast_daemon.validation.node_rules import KnownRanks, check_node
from holdfast_proto import limits
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import (
    DIRECTION_SEND,
    OWN_TIME_SOURCE_NONE,
    PHASE_DATA,
    PHASE_UNSPECIFIED,
    ChannelProgress,
    GroupProgress,
    LoggedNumber,
    PendingCall,
    Progress,
)
from tests.support.nodes import begin, make_node

WORLD, MOST_GROUPS = 4, 4096
NOW_UNIX_S = 1.9e9
NAN, INFINITY = math.nan, math.inf


def whole() -> session.Report:
    """A report with everything in it, as a healthy rank sends it."""
    return session.Report(
        progress=Progress(
            step=7,
            phase=PHASE_DATA,
            groups=[GroupProgress(group="0", member_runs=[0, 3, 2], enqueued=4, completed=4)],
            channels=[ChannelProgress(group="0", peer=3, direction=DIRECTION_SEND, enqueued=1)],
        ),
        steps=[
            session.StepRecord(
                step=6, ended_unix_s=1.8e9, duration_s=0.2, loss=NAN, grad_norm=INFINITY, tokens=512, mfu=0.4,
                phase_s={PHASE_DATA: 0.1}, samples=b"x" * 16,
                bad_gradient=session.BadGradient(parameter="norm.weight", unix_s=1.8e9),
                replicas=[session.ReplicaHash(part="norm.weight[0:8]", hash=5)],
                plain=[session.ReplicaHash(part="", hash=5)], coverage=session.ReplicaCoverage(parameter_bytes=4),
                replay=session.ReplayCheck(duration_s=0.3, part="all_reduce 1", vote=session.REPLAY_VOTE_FIRST),
            )
        ],
        snapshots=[session.SnapshotTaken(step=6, stall_s=0.01, bytes=1 << 30)],
        memory=session.MemoryStatus(allocated_bytes=1 << 30),
        reporter_cpu_s=0.5,
        outside_s={PHASE_DATA: 0.1},
        device_uuid="GPU-1",
        steps_until=1000,
        own_wait_s=1.5,
        device_own_s=2.5,
        device_steps=3,
        own_time_source=OWN_TIME_SOURCE_NONE,
        own_time_reason="it sends messages",
        modules=["torch", "torch.distributed._tensor"],
        last_words="ValueError: bad sample",
        pending=[PendingCall(group="0", seq=5, op="gloo:all_reduce")],
        logged=[LoggedNumber(name="rewards/chosen", value=NAN, step=-1)],
    )  # fmt: skip


def cleaned(report: session.Report) -> tuple[session.Report, list[str]]:
    reasons: list[str] = []
    clean_report(report, WORLD, reasons.append, now_unix_s=NOW_UNIX_S)
    return report, reasons


def test_report_of_a_healthy_rank_stays_as_it_is_also_with_a_loss_that_is_not_finite() -> None:
    assert cleaned(whole()) == (whole(), [])
    assert cleaned(session.Report()) == (session.Report(), [])


@pytest.mark.parametrize("step", [-2, -(2**63), 2**62])
def test_progress_with_an_impossible_step_is_refused_and_the_rest_used(step: int) -> None:
    report = whole()
    report.progress.step = step
    report, reasons = cleaned(report)
    assert not report.HasField("progress")
    assert len(report.steps) == len(report.snapshots) == len(reasons) == 1


def test_phase_of_a_newer_version_does_not_cost_the_progress() -> None:
    report = whole()
    report.progress.phase = 99  # type: ignore[assignment]
    report.steps[0].phase_s[99] = 0.5
    report, reasons = cleaned(report)
    assert (report.progress.step, report.progress.phase) == (7, PHASE_UNSPECIFIED)
    assert dict(report.steps[0].phase_s) == {PHASE_DATA: 0.1}
    assert len(reasons) == 2


@pytest.mark.parametrize("duration_s", [NAN, INFINITY, -INFINITY, -1.0, 1e300])
def test_step_with_an_impossible_duration_counts_as_done(duration_s: float) -> None:
    report = whole()
    report.steps[0].duration_s = report.steps[0].ended_unix_s = duration_s
    report.steps[0].phase_s[PHASE_DATA] = duration_s
    report.steps[0].mfu = NAN
    report.reporter_cpu_s = report.outside_s[PHASE_DATA] = duration_s
    report.device_uuid = "x" * 5000
    report.steps_until = report.planned_steps = 2**63
    report, reasons = cleaned(report)
    [step] = report.steps
    assert (step.step, step.duration_s, dict(step.phase_s), step.HasField("mfu")) == (6, 0.0, {}, False)
    assert step.ended_unix_s == NOW_UNIX_S
    assert (report.reporter_cpu_s, dict(report.outside_s), report.device_uuid) == (0.0, {}, "")
    assert (report.steps_until, report.planned_steps, len(reasons)) == (0, 0, 9)


@pytest.mark.parametrize(
    ("part", "junk"),
    [
        ("steps", session.StepRecord(step=-1)),
        ("steps", session.StepRecord(step=2**63 - 1)),
        ("snapshots", session.SnapshotTaken(step=-5)),
        ("snapshots", session.SnapshotTaken(step=1, stall_s=NAN)),
        ("snapshots", session.SnapshotTaken(step=1, unchanged_bytes=2**64 - 1)),
        ("pending", PendingCall(seq=2**64 - 1)),
        ("pending", PendingCall(op="x" * 100_000)),
        ("logged", LoggedNumber(name="")),
        ("logged", LoggedNumber(name="a\x1b[2J")),
        ("logged", LoggedNumber(name="x" * 101)),
        ("logged", LoggedNumber(name="kl", step=-2)),
        ("groups", GroupProgress(group="1", member_runs=[0, WORLD, 2])),
        ("groups", GroupProgress(group="1", member_runs=[2**32 - 1, 1, 1])),
        ("groups", GroupProgress(group="x" * 10_000)),
        ("groups", GroupProgress(group="1", enqueued=2**64 - 1)),
        ("channels", ChannelProgress(group="0", peer=WORLD)),
        ("channels", ChannelProgress(group="0", direction=9)),  # type: ignore[arg-type]
        ("channels", ChannelProgress(group="0", completed=2**64 - 1)),
    ],
)
def test_junk_goes_and_what_is_next_to_it_stays(part: str, junk: Any) -> None:
    report = whole()
    getattr(report.progress if part in ("groups", "channels") else report, part).append(junk)
    report, reasons = cleaned(report)
    assert (report, len(reasons)) == (whole(), 1)


def test_long_texts_are_cut_and_only_names_of_modules_are_imported_ahead() -> None:
    report = whole()
    report.last_words = "x" * 1_000_000 + "the end"
    report.modules.extend(["os; import sys", "../../evil", "x" * 5000, *(f"m{n}" for n in range(10_000))])
    report.steps[0].samples = b"y" * 100_000
    report.steps[0].tokens = 2**64 - 1
    report.memory.ooms = 2**64 - 1
    report, _ = cleaned(report)
    assert len(report.last_words) == message_checks.WORDS_CHARACTERS
    assert report.last_words.endswith("the end")
    assert len(report.modules) == 4000
    assert all(name.replace(".", "").isidentifier() for name in report.modules)
    assert not (report.steps[0].samples or report.steps[0].HasField("tokens") or report.HasField("memory"))


def hello(**changes: Any) -> session.Hello:
    return session.Hello(**{"rank": 1, "world_size": 4, "local_rank": 1, "local_world_size": 2, "pid": 77, **changes})


def test_rank_of_another_launcher_must_be_one_of_a_world() -> None:
    assert flaw_of_hello(hello()) == ""
    for junk in (
        hello(rank=4), hello(rank=2**32 - 1), hello(world_size=2**31), hello(local_rank=2), hello(pid=0),
        hello(pid=2**31), hello(local_world_size=5), session.Hello(),
    ):  # fmt: skip
        assert flaw_of_hello(junk)


def test_an_odd_introduction_does_not_cost_a_rank_its_session() -> None:
    reasons: list[str] = []
    said = hello(device="x" * 10_000, coordinates={f"axis{n}": 0 for n in range(100)}, training_thread=2**31)
    clean_hello(said, reasons.append)
    assert (said, len(reasons)) == (hello(), 3)


def test_absurd_slots_are_refused() -> None:
    assert flaw_of_slots(session.SlotRequest(bytes_per_slot=80 << 30, slots=3)) == ""
    assert flaw_of_slots(session.SlotRequest(bytes_per_slot=2**64 - 1))
    assert flaw_of_slots(session.SlotRequest(bytes_per_slot=1, slots=2**32 - 1))


@pytest.mark.parametrize("excess", [0, 1])
def test_daemon_refuses_nothing_of_what_an_agent_lets_pass(excess: int) -> None:
    count, name, text = limits.LARGEST_COUNT + excess, "x" * (limits.NAME_CHARACTERS + excess), "x" * 60_000
    report = whole()
    progress = report.progress
    progress.step = limits.LARGEST_COUNT
    progress.groups.add(group=name, description=name, member_runs=[0, 1, 1], enqueued=count, completed=count)
    source = 99 if excess else 2
    progress.device_groups.add(
        group=name, member_runs=[0, 1, 1], enqueued=count, started=count, completed=count, source=source
    )
    progress.channels.add(group=name, peer=1, direction=DIRECTION_SEND, enqueued=count, completed=count)
    report.recorders.add(source=source, backend="x" * (64 + excess))
    report.worker_socket = "/" + "x" * (106 + excess)
    report.pending.add(rank=1, group=name, op=name, seq=count, sizes=text, dtypes=text)
    if excess:
        progress.groups.add(group="descending", member_runs=[1, 1, 1, 0, 1, 1])
        progress.groups.extend([progress.groups[0]] * MOST_GROUPS)
        report.pending.extend([report.pending[0]] * MOST_GROUPS)
    fingerprint = b"x" * (64 + excess)
    ended_unix_s = math.nextafter(limits.LATEST_UNIX_S, INFINITY) if excess else limits.LATEST_UNIX_S
    report.steps.add(step=7, samples=fingerprint, tokens=count, ended_unix_s=ended_unix_s)
    said = hello(device=name, coordinates={name: 0})
    report, _ = cleaned(report)
    clean_hello(said, list[str]().append)

    state = store.RankState(
        rank=1, life=store.LIFE_RUNNING, progress=report.progress, pending=report.pending, device=said.device,
        recorders=report.recorders, coordinates=said.coordinates, first_step_ended_unix_s=report.steps[-1].ended_unix_s,
    )  # fmt: skip
    node = store.NodeState(run="r", node="a", world_size=WORLD, ranks=[state])
    check_node(node, name="a", run="r", spec=None, known=KnownRanks())
    for step in report.steps:
        for summary in StepSummaries(1, ranks=1).add(1, step):
            check_event(store.Event(node="a", generation=1, step_summary=summary), None)
    assert (len(report.recorders), len(report.worker_socket)) == ((0, 0) if excess else (1, 107))
    assert len(report.progress.device_groups) == (0 if excess else 1)
    left = MOST_GROUPS if excess else 2
    assert (len(progress.groups), len(report.pending)) == (left, left)


@pytest.mark.parametrize("bad", [session.BadGradient(parameter="x" * 300), session.BadGradient(unix_s=NAN)])
def test_a_bad_gradient_that_makes_no_sense_is_removed_and_the_step_stays(bad: session.BadGradient) -> None:
    report = whole()
    report.steps[0].bad_gradient.CopyFrom(bad)
    report, reasons = cleaned(report)
    assert not report.steps[0].HasField("bad_gradient")
    assert (report.steps[0].tokens, len(reasons)) == (512, 1)


@pytest.mark.parametrize("seconds", [NAN, -1.0, INFINITY])
def test_a_sleep_that_is_out_of_range_is_removed(seconds: float) -> None:
    report, reasons = cleaned(session.Report(own_wait_s=seconds))
    assert (report.own_wait_s, reasons) == (0.0, [f"own_wait_s is {seconds}: 0 to 1000000000 is expected"])
    report, reasons = cleaned(session.Report(device_own_s=seconds, device_steps=2**63))
    assert (report.device_own_s, report.device_steps, len(reasons)) == (0.0, 0, 2)


@pytest.mark.parametrize("reason", ["x" * (limits.NAME_CHARACTERS + 1), "two\nlines"])
def test_a_source_of_the_own_time_that_is_unknown_and_a_reason_that_is_no_line_are_removed(reason: str) -> None:
    report, reasons = cleaned(session.Report(own_time_source=77, own_time_reason=reason, device_steps=3))  # type: ignore[arg-type]
    assert (report.own_time_source, report.own_time_reason, report.device_steps, len(reasons)) == (0, "", 3, 2)


def test_a_rank_with_one_bad_coordinate_has_none() -> None:
    said = hello(coordinates={"dp": 1, "tp": limits.MOST_RANKS})
    reasons: list[str] = []
    clean_hello(said, reasons.append)
    assert (dict(said.coordinates), len(reasons)) == ({}, 1)


def test_daemon_takes_the_whole_state_of_an_agent(folder: Path) -> None:
    node = make_node(folder)
    begin(node, 1, {0: os.getpid(), 1: os.getpid()})
    node.failed_generation, node.failure = 1, "x"
    state = node.state(ready=True)
    assert len(state.ranks) == 2
    check_node(state, name=node.options.node, run=node.spec.run, spec=node.spec, known=KnownRanks())
