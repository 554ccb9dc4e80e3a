"""Runs that have ended before: how each ended, when, and what shows it."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from holdfast_core.naming import STOPPED_BY_OPERATOR
from holdfast_daemon.console.pages.past_runs import past_runs
from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.console.conftest import OpenPage
from tests.support.console_browser import PHONE, Theme, keep_screenshot
from tests.support.console_server import simulated_console
from tests.support.histories import BEGUN_UNIX_S, STEP_S, counted, write_steps
from tests.support.simulated_run import SimulatedRun

FINISHED, FAILED = store.RUN_PHASE_FINISHED, store.RUN_PHASE_FAILED
ENDED_UNIX_S = 1_789_000_000.0


def write_end(directory: Path, run: str, instance: str, outcome: str, phase: "store.RunPhase") -> None:
    """Keep the end of a run as its daemon does, after ten steps."""
    write_steps(directory, (counted(step, step_s=0.5) for step in range(10)), run, instance)
    made = SimulatedRun(run_name=run)
    made.end(outcome, phase)
    batch = StartRows(state=made.state, state_unix_s=ENDED_UNIX_S)
    HistoryFile(directory, run).write([(instance, batch)])


def ends(directory: Path, **current: str) -> dict[str, dict[str, Any]]:
    return {f"{one['run']} {one['instance']}": one for one in past_runs(directory, current)["runs"]}


@pytest.mark.parametrize(
    ("outcome", "phase", "end"),
    [
        ("finished", FINISHED, ("finished", "", "ended")),
        ("rank 3 was killed", FAILED, ("failed", "rank 3 was killed", "bad")),
        (STOPPED_BY_OPERATOR, FAILED, ("stopped", STOPPED_BY_OPERATOR, "ended")),
    ],
)
def test_an_ended_run_has_its_end_and_when(
    tmp_path: Path, outcome: str, phase: "store.RunPhase", end: tuple[str, str, str]
) -> None:
    write_end(tmp_path, "a", "i", outcome, phase)
    found = ends(tmp_path)["a i"]
    assert (found["end"], found["end_text"], found["health"]) == end
    assert (found["ended_unix_s"], found["steps"], found["reported"]) == (ENDED_UNIX_S, 10, True)


def test_a_run_whose_daemon_ended_first_has_the_time_of_its_last_step(tmp_path: Path) -> None:
    write_steps(tmp_path, (counted(step, step_s=0.5) for step in range(10)), "a", "i")
    found = ends(tmp_path)["a i"]
    assert (found["end"], found["end_text"]) == ("unknown", "its daemon ended before it could keep the end")
    assert found["ended_unix_s"] == BEGUN_UNIX_S + 9 * STEP_S
    write_end(tmp_path, "b", "i", "", store.RUN_PHASE_RUNNING)
    assert ends(tmp_path)["b i"]["end"] == "unknown"


def test_only_the_newest_start_of_a_name_that_does_not_run_has_a_report(tmp_path: Path) -> None:
    for instance in ("first", "second"):
        write_end(tmp_path, "a", instance, "finished", FINISHED)
    assert [ends(tmp_path)[f"a {name}"]["reported"] for name in ("first", "second")] == [False, True]
    assert not any(one["reported"] or one["current"] for one in ends(tmp_path, a="third").values())
    assert ends(tmp_path, a="second")["a second"]["current"]


def test_a_damaged_history_is_left_out(tmp_path: Path) -> None:
    write_end(tmp_path, "a", "i", "finished", FINISHED)
    run_files.history(tmp_path, "b").write_bytes(b"no database")
    assert list(ends(tmp_path)) == ["a i"]


def test_a_start_that_was_refused_is_no_past_run(tmp_path: Path) -> None:
    write_end(tmp_path, "a", "ran", "finished", FINISHED)
    refused, failed = SimulatedRun(run_name="a"), SimulatedRun(run_name="b")
    HistoryFile(tmp_path, "a").write([("refused", StartRows(state=refused.state, state_unix_s=ENDED_UNIX_S))])
    failed.end("no node came", FAILED)
    HistoryFile(tmp_path, "b").write([("failed", StartRows(state=failed.state, state_unix_s=ENDED_UNIX_S))])
    assert set(ends(tmp_path)) == {"a ran", "b failed"}
    # It may still begin.
    assert ends(tmp_path, a="refused")["a refused"]["current"]


def test_a_past_run_whose_steps_have_no_time_is_listed_with_their_number(tmp_path: Path) -> None:
    write_steps(tmp_path, (counted(step, loss=2.0) for step in range(10)), "a", "i")
    assert ends(tmp_path)["a i"]["steps"] == 10


@pytest.mark.system
@pytest.mark.parametrize(("theme", "size"), [("light", (1440, 900)), ("dark", PHONE)])
def test_the_list_of_runs_shows_past_ones_below(
    open_page: OpenPage, tmp_path: Path, theme: Theme, size: tuple[int, int]
) -> None:
    write_end(tmp_path, "llama-1b", "i", "rank 3 was killed", FAILED)
    write_end(tmp_path, "llama-3b", "i", "finished", FINISHED)
    with (
        simulated_console(tmp_path, ranks=8) as console,
        open_page(console.address(), theme=theme, size=size) as (page, _),
    ):
        past = page.get_by_role("region", name="Ended before")
        rows = past.locator("tbody tr")
        expect(rows).to_have_count(3)
        failed = rows.filter(has_text="llama-1b")
        expect(failed.locator(".badge")).to_have_text("failed")
        expect(failed).to_contain_text("rank 3 was killed")
        expect(failed.locator("code")).to_have_text("holdfast report llama-1b")
        expect(rows.filter(has_text="its daemon ended before it could keep the end")).to_have_count(1)
        expect(past).to_contain_text(f"--directory {tmp_path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        keep_screenshot(page, f"past-runs-{theme}-{size[0]}")
