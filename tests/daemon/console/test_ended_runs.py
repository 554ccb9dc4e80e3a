"""Runs that have ended, as the console shows them from their files: the same as before, and no more than is known."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from holdfast_core.model import Logged
from holdfast_daemon.console.ended_runs import MAY_RUN_S, NothingKeptError, read_ended
from holdfast_daemon.console.pages.run_frame import run_frame
from holdfast_daemon.console.ranks.rank_table import RankReader
from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.history_tables import LOGGED, MEMORY
from holdfast_daemon.history.rows import MetricRow, checkpoint_row
from holdfast_daemon.incidents.archive import IncidentLog
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.console.conftest import OpenPage
from tests.support.console_browser import keep_screenshot
from tests.support.histories import counted, write_steps
from tests.support.simulated_run import SimulatedRun

INSTANCE = "simulated"
NOT_KEPT = {"now_unix_s", "telemetry", "deadline_s", "progress", "newest_snapshot"}
"""What the page of a run shows of one that still runs: its clock, what it has learned, smoothed numbers, its memory."""


def trained() -> SimulatedRun:
    run = SimulatedRun(run_name="r", steps_until=100)
    run.advance(10.0)
    run.judge(3)
    run.recover()
    run.advance(10.0)
    return run


def keep(directory: Path, run: SimulatedRun) -> None:
    """Write what the daemon of a run writes."""
    HistoryFile(directory, "r").write([(INSTANCE, StartRows(state=run.state, state_unix_s=run.now))])
    for incident in run.incidents.values():
        IncidentLog(directory, "r").append(incident)


@pytest.mark.parametrize(
    ("outcome", "phase"), [("finished", store.RUN_PHASE_FINISHED), ("lost", store.RUN_PHASE_FAILED)]
)
def test_the_page_of_an_ended_run_is_that_of_its_last_moment(
    tmp_path: Path, outcome: str, phase: "store.RunPhase"
) -> None:
    run = trained()
    run.end(outcome, phase)
    keep(tmp_path, run)
    before = run_frame(run, RankReader(), run.now)
    after = run_frame(read_ended(tmp_path, "r", run.now), RankReader(), run.now + 1e6)
    assert {name: after[name] for name in before if name not in NOT_KEPT} == {
        name: value for name, value in before.items() if name not in NOT_KEPT
    }
    assert (after["incidents"], after["telemetry"]["loss"]) == (1, before["telemetry"]["loss"])


def test_a_run_that_was_cut_short_has_ended_with_its_newest_step(tmp_path: Path) -> None:
    run = trained()
    run.hang(2)
    run.advance(30.0)
    run.judge(2)
    keep(tmp_path, run)
    step = 10 * run.ranks
    write_steps(tmp_path, [counted(step, loss=1.25, step_s=0.5)], "r", INSTANCE)
    frame = run_frame(read_ended(tmp_path, "r", 2e9), RankReader(), 2e9)
    assert (frame["state"], frame["health"], frame["step"], frame["telemetry"]["loss"]) == ("failed", "bad", step, 1.25)
    assert frame["outcome"].startswith("cut short after 20")
    assert (frame["rank_counts"]["exited"], frame["incidents_list"][0]["state"]) == (run.ranks, "failed")


def test_a_run_that_was_ended_before_its_daemon_knew_ends_as_it_was_left(tmp_path: Path) -> None:
    run = trained()
    keep(tmp_path, run)
    time_use = {"productive": 20.0, "detection": 42.0}
    last = control.RunStatus(outcome="stopped by an operator", time_use_s=time_use, now_unix_s=run.now + 42.0)
    commit = store.Event(generation=1, checkpoint_committed=store.CheckpointCommitted(step=41))
    HistoryFile(tmp_path, "r").write([(INSTANCE, StartRows(checkpoints=[checkpoint_row(commit)]))])
    frame = run_frame(read_ended(tmp_path, "r", run.now, last=last, is_over=True), RankReader(), 2e9)
    assert (frame["state"], frame["outcome"], frame["health"]) == ("stopped", "stopped by an operator", "ended")
    assert (frame["wall_s"], frame["time_use_s"]["detection"], frame["newest_checkpoint"]) == (62.0, 42.0, 41)


def test_a_run_of_which_its_daemon_wrote_lately_may_still_run(tmp_path: Path) -> None:
    run = trained()
    keep(tmp_path, run)
    with pytest.raises(NothingKeptError, match=r"run r may still run, .* name the daemon with --control"):
        read_ended(tmp_path, "r", run.now + MAY_RUN_S - 1.0)
    assert read_ended(tmp_path, "r", run.now, is_over=True).outcome.startswith("cut short")


def test_what_no_daemon_has_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(NothingKeptError, match="there is nothing to show of run r: no history"):
        read_ended(tmp_path, "r", 0.0)
    write_steps(tmp_path, [counted(0, loss=1.0)], "r", "i")
    with pytest.raises(NothingKeptError, match=r"kept too little .* use `holdfast report r`"):
        read_ended(tmp_path, "r", 0.0)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address that `holdfast console` prints for a run that has ended, while it serves."""
    run = trained()
    for step in range(40):
        rows = [MetricRow(f"{LOGGED}my/reward", 1, step, 1.0, 0.1 * step), MetricRow(MEMORY, 1, step, 1.0, 2.0**31)]
        HistoryFile(tmp_path, "r").write(
            [(INSTANCE, StartRows(steps=[counted(step, loss=2.0, step_s=0.5)], metrics=rows))]
        )
    run.judge(1, state=store.INCIDENT_STATE_FAILED)
    run.end("rank 1 fails each time", store.RUN_PHASE_FAILED)
    run.report(logged={"my/reward": Logged(3.9, 39, 0, 1)})
    keep(tmp_path, run)
    command = [sys.executable, "-m", "holdfast_cli", "console", "--directory", str(tmp_path), "--run", "r"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "run r has ended: rank 1 fails each time\n"
            yield process.stdout.readline().removeprefix("console: ").strip()
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            assert (process.wait(60), rest.splitlines()[-1]) == (0, "Ctrl-C ends this console")


@pytest.mark.system
def test_the_command_serves_the_pages_of_an_ended_run(open_page: OpenPage, address: str) -> None:
    with open_page(address) as (page, watch):
        page.get_by_role("link", name="r", exact=True).click()
        expect(page.get_by_role("heading", name="Rank 1 is stopped")).to_be_visible()
        for title, value in (("my/reward", "3.9"), ("Memory of the fullest rank (GiB)", "2")):
            chart = page.get_by_role("figure").filter(has=page.get_by_role("heading", name=title, exact=True))
            expect(chart.locator(".newest")).to_have_text(value)
        expect(page.get_by_text("from the files of ended runs")).to_be_visible()
        expect(page.get_by_role("link", name="Holdfast itself")).to_have_count(0)
        expect(page.get_by_role("button", name="Stop the run")).to_be_disabled()
        keep_screenshot(page, "ended-run")
        watch.expect_nothing()
        watch.expects_refusals = True
        page.goto(f"{address.partition('#')[0]}#/runs/never-heard-of")
        expect(page.get_by_text("this daemon knows no run 'never-heard-of'")).to_be_visible()
        expect(page.get_by_text("Not connected")).to_have_count(0)
