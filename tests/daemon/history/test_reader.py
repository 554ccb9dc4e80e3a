"""Reading a history: curves in buckets, the live tail, what restarts undo, and files that are no histories."""

import math
import sqlite3
import zlib
from pathlib import Path

import pytest

from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.history_reader import HistoryError, RunHistory
from holdfast_daemon.history.history_tables import LOGGED, MEMORY
from holdfast_daemon.history.rows import CheckpointRow, MetricRow, counted_step, metric_stride
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA
from tests.support.histories import BEGUN_UNIX_S, STEP_S, counted, write_steps


def test_a_short_curve_has_every_step(tmp_path: Path) -> None:
    curve = write_steps(tmp_path, [counted(step, loss=10.0 - step) for step in range(5)]).curve("i", "loss")
    assert curve.step == [0, 1, 2, 3, 4]
    assert curve.mean == curve.low == curve.high == [10.0, 9.0, 8.0, 7.0, 6.0]
    assert curve.unix_s[2] == BEGUN_UNIX_S + 2 * STEP_S


def test_buckets_have_mean_lowest_and_highest_value(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(step, loss=float(step % 10)) for step in range(100)])
    curve = history.curve("i", "loss", points=10)
    assert curve.step == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]
    assert (set(curve.mean), set(curve.low), set(curve.high)) == ({4.5}, {0.0}, {9.0})


def test_a_curve_of_a_range_has_only_its_steps(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(step, loss=float(step)) for step in range(100)])
    assert history.curve("i", "loss", since_step=40, until_step=42).step == [40, 41, 42]
    assert history.curve("i", "loss", since_step=100).step == []


def test_a_quantity_that_few_steps_have_keeps_its_own_steps(tmp_path: Path) -> None:
    steps = [counted(step, validation_loss=1.0) if step % 30 == 5 else counted(step, loss=1.0) for step in range(100)]
    assert write_steps(tmp_path, steps).curve("i", "validation_loss").step == [5, 35, 65, 95]


def test_steps_that_a_restart_undid_are_not_in_the_curve(tmp_path: Path) -> None:
    steps = [counted(step, 1, loss=1.0) for step in range(10)]
    steps += [counted(step, 2, loss=2.0) for step in range(6, 9)]
    curve = write_steps(tmp_path, steps).curve("i", "loss")
    assert (curve.step, curve.mean) == ([0, 1, 2, 3, 4, 5, 6, 7, 8], [1.0] * 6 + [2.0] * 3)


def test_a_third_generation_may_undo_steps_of_both_before(tmp_path: Path) -> None:
    steps = [counted(step, 1, loss=1.0) for step in range(10)]
    steps += [counted(step, 2, loss=2.0) for step in range(8, 12)]
    steps += [counted(step, 3, loss=3.0) for step in range(4, 6)]
    assert write_steps(tmp_path, steps).curve("i", "loss").mean == [1.0] * 4 + [3.0] * 2


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_named_and_is_no_number(tmp_path: Path, loss: float) -> None:
    summaries = [store.StepSummary(step=step, loss_sum=2.0, loss_count=1, ended_unix_s=1.0) for step in range(4)]
    summaries[2].loss_sum = loss
    history = write_steps(tmp_path, [counted_step(summary, 0.0) for summary in summaries])
    curve = history.curve("i", "loss")
    assert (curve.step, curve.mean, curve.nonfinite) == ([0, 1, 2, 3], [2.0, 2.0, None, 2.0], [2])
    assert history.curve("i", "loss", points=1).mean == [2.0]
    assert history.steps_after("i", -1)[2].nonfinite == ("loss",)


def test_a_step_has_the_numbers_of_its_summary() -> None:
    summary = store.StepSummary(
        step=3, generation=2, loss_sum=6.0, loss_count=2, tokens=100, duration_s=0.5, phase_s={PHASE_DATA: 0.1}
    )
    summary.mfu.CopyFrom(store.Mean(sum=0.8, count=2))
    row = counted_step(summary, 7.0)
    assert (row.generation, row.step, row.unix_s, row.nonfinite) == (2, 3, 7.0, 0)
    assert row.values == (3.0, None, None, None, None, None, 200.0, 0.5, 0.4, 0.1)


def test_a_metric_has_a_curve_that_a_restart_cuts_as_the_others(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(step, loss=1.0) for step in range(10)])
    write_steps(tmp_path, [counted(step, 2, loss=2.0) for step in range(6, 9)])
    rows = [MetricRow(f"{LOGGED}a,b", 1, step, float(step), float(step)) for step in range(0, 10, 3)]
    rows += [MetricRow(f"{LOGGED}a,b", 2, 7, 70.0, None), MetricRow(MEMORY, 2, 8, 80.0, 5.0)]
    HistoryFile(tmp_path, "r").write([("i", StartRows(metrics=rows))])
    curve = history.curve("i", f"{LOGGED}a,b")
    assert (curve.step, curve.mean, curve.nonfinite) == ([0, 3, 7], [0.0, 3.0, None], [7])
    assert history.curve("i", MEMORY).mean == [5.0]
    assert history.curve("i", f"{LOGGED}unknown").step == []


def test_a_metric_of_a_long_run_has_fewer_rows(tmp_path: Path) -> None:
    steps = (0, 4_999, 5_000, 49_999, 50_000, 7_654_321)
    assert [metric_stride(step) for step in steps] == [1, 1, 10, 10, 100, 10_000]
    history = write_steps(tmp_path, [counted(step, loss=1.0) for step in (0, 6_000)])
    rows = [MetricRow(MEMORY, 1, step, 1.0, float(step)) for step in range(4_998, 5_020)]
    HistoryFile(tmp_path, "r").write([("i", StartRows(metrics=rows))])
    curve = history.curve("i", MEMORY, points=10_000)
    assert (curve.step, curve.mean) == ([4_998, 4_999, 5_000, 5_010], [4_998.0, 4_999.0, 5_009.0, 5_019.0])


def test_a_history_of_before_has_no_metrics_and_no_state_until_it_is_written(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(0, loss=1.0)])
    with sqlite3.connect(history.path) as connection:
        connection.executescript("DROP TABLE metrics; DROP TABLE states;")
    assert history.curve("i", MEMORY).step == []
    assert history.kept_state("i") is None
    HistoryFile(tmp_path, "r").write([("i", StartRows(metrics=[MetricRow(MEMORY, 1, 0, 1.0, 5.0)]))])
    assert history.curve("i", MEMORY).mean == [5.0]


def test_the_tail_continues_after_a_row(tmp_path: Path) -> None:
    steps = [counted(step, 1, loss=1.0) for step in range(4)] + [counted(2, 2, loss=2.0)]
    history = write_steps(tmp_path, steps)
    first = history.steps_after("i", -1, limit=2)
    assert [(one.generation, one.step) for one in first] == [(1, 0), (1, 1)]
    rest = history.steps_after("i", first[-1].row)
    assert [(one.generation, one.step, one.values["loss"]) for one in rest] == [(1, 2, 1.0), (1, 3, 1.0), (2, 2, 2.0)]
    assert all(list(one.values) == ["loss"] for one in rest)
    assert history.newest_row("i") == rest[-1].row
    assert history.steps_after("i", rest[-1].row) == []


def test_checkpoints_come_back(tmp_path: Path) -> None:
    row = CheckpointRow(1, 50, 9.0, 2000, 1000, 0.25)
    HistoryFile(tmp_path, "r").write([("i", StartRows(checkpoints=[row, row]))])
    assert RunHistory(run_files.history(tmp_path, "r")).checkpoints("i") == [row]


def test_an_instance_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(0, loss=1.0)])
    found = history.curve("other", "loss").step, history.steps_after("other", -1), history.checkpoints("other")
    assert found == ([], [], [])
    assert (history.final("other"), history.newest_row("other")) == (None, -1)


def test_a_quantity_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(0, loss=1.0)])
    with pytest.raises(ValueError, match="no quantity 'loss; DROP': use one of loss, "):
        history.curve("i", "loss; DROP")


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(0, loss=1.0)])
    with history._opened() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM steps")


@pytest.mark.parametrize(
    ("table", "value"),
    [
        ("states", b"no zlib"),
        ("states", zlib.compress(b"no message" * 9)),
        ("states", zlib.compress(bytes(99))[:-6]),
        ("finals", "[1]"),
        ("finals", "{"),
    ],
)
def test_a_damaged_state_or_status_is_an_error(tmp_path: Path, table: str, value: object) -> None:
    history = write_steps(tmp_path, [counted(0, loss=1.0)])
    with sqlite3.connect(history.path) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (1, 0.0, 0, ?)", (value,))
    with pytest.raises(HistoryError, match="cannot be read"):
        history.kept_state("i") if table == "states" else history.final("i")


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"no database at all, but long enough", r"r\.sqlite"), (b"", r"r\.sqlite"), (None, "does not exist")],
)
def test_a_file_that_is_no_history_is_an_error_of_one_line(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "r.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HistoryError, match=text) as caught:
        RunHistory(path)
    assert "\n" not in str(caught.value)


def test_a_damaged_page_is_an_error_of_the_reading(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(step, loss=1.0) for step in range(2000)])
    with history.path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (history.path.stat().st_size - 8192))
    with pytest.raises(HistoryError, match="cannot be read"):
        history.curve("i", "loss")
