"""Rows of new steps: all of the history, each once, and what a restart has undone."""

import math
from dataclasses import replace
from pathlib import Path

from holdfast_daemon.console.pages.step_rows import StepRows
from holdfast_proto import run_files
from tests.support.histories import counted, write_steps
from tests.support.simulated_run import SimulatedRun

RUN, INSTANCE = "llama-7b", "simulated"


def rows_of(it: StepRows, run: SimulatedRun) -> list[tuple[list[float | None], int | None]]:
    return [([row[0] for row in event["rows"]], event["undone_after"]) for event in it.new(run.state, run.now)]


def write(folder: Path, first: int, end: int, generation: int = 1) -> None:
    write_steps(folder, (counted(step, generation, loss=1.0) for step in range(first, end)), RUN, INSTANCE)


def test_all_steps_of_the_history_come_once(tmp_path: Path) -> None:
    run, it = SimulatedRun(), StepRows(run_files.history(tmp_path, RUN))
    write(tmp_path, 0, 3)
    it.begin(run.state)
    assert rows_of(it, run) == []
    write(tmp_path, 3, 6)
    assert rows_of(it, run) == [([3, 4, 5], None)]
    assert rows_of(it, run) == []


def test_a_restart_names_the_step_after_which_it_undid_others(tmp_path: Path) -> None:
    run, it = SimulatedRun(), StepRows(run_files.history(tmp_path, RUN))
    write(tmp_path, 0, 5)
    it.begin(run.state)
    write(tmp_path, 5, 7)
    write(tmp_path, 4, 6, generation=2)
    assert rows_of(it, run) == [([5, 6], None), ([4, 5], 3)]
    write(tmp_path, 6, 7, generation=3)
    assert rows_of(it, run) == [([6], None)]


def test_without_a_history_the_newest_step_is_shown(tmp_path: Path) -> None:
    run, it = SimulatedRun(), StepRows(run_files.history(tmp_path, RUN))
    run.advance(2.0)
    it.begin(run.state)
    assert rows_of(it, run) == []
    run.advance(1.0)
    assert rows_of(it, run) == [([5], None)]
    assert rows_of(it, run) == []
    write_steps(tmp_path, [counted(9, loss=1.0)], RUN, "earlier")
    run.advance(1.0)
    assert rows_of(it, run) == [([7], None)]
    write(tmp_path, 6, 9)
    assert rows_of(it, run) == [([8], None)]


def test_a_damaged_history_stops_nothing(tmp_path: Path) -> None:
    run, path = SimulatedRun(), run_files.history(tmp_path, RUN)
    path.parent.mkdir()
    path.write_bytes(b"no database" * 100)
    it = StepRows(path)
    it.begin(run.state)
    run.advance(1.0)
    assert rows_of(it, run) == [([1], None)]


def test_a_loss_that_is_missing_is_told_from_one_that_is_not_finite(tmp_path: Path) -> None:
    run, it = SimulatedRun(), StepRows(run_files.history(tmp_path, RUN))
    write(tmp_path, 0, 1)
    it.begin(run.state)
    write_steps(tmp_path, [counted(1, 1), counted(2, 1, nonfinite=("loss",)), counted(3, 1, loss=2.0)], RUN, INSTANCE)
    (event,) = it.new(run.state, run.now)
    assert [row[2] for row in event["rows"]] == [None, None, 2.0]
    assert event["nonfinite"] == {"loss": [2]}


def test_a_daemon_without_a_history_tells_them_apart_too(tmp_path: Path) -> None:
    run, it = SimulatedRun(), StepRows(run_files.history(tmp_path, RUN))
    state = run.state
    assert state is not None
    it.begin(state)
    telemetry = replace(state.telemetry, loss=math.nan, loss_step=state.telemetry.loss_step + 1)
    (event,) = it.new(replace(state, telemetry=telemetry), run.now)
    assert event["rows"][0][2] is None
    assert event["nonfinite"] == {"loss": [telemetry.loss_step]}
