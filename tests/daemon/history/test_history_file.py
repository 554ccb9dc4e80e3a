"""Writing a history: what is kept once, what survives a kill, and files that are damaged."""

import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_base.text import HIDDEN
from holdfast_core.model import CoreState
from holdfast_daemon.history import history_file, history_tables, thinning
from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.history_reader import RunHistory
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World
from tests.support.histories import counted, write_steps


def trained(steps: int = 3) -> World:
    world = World()
    world.until("starting")
    world.train(steps)
    return world


def write_state(directory: Path, state: CoreState, unix_s: float = 5.0) -> RunHistory:
    """Keep the status of a run, and return the history."""
    HistoryFile(directory, "r").write([("i", StartRows(state=state, state_unix_s=unix_s))])
    return RunHistory(run_files.history(directory, "r"))


def final(history: RunHistory) -> Mapping[str, Any]:
    """Return the status that is kept."""
    found = history.final("i")
    assert found is not None
    return found


def damage(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"not a database " * 100)


def test_the_file_is_private(tmp_path: Path) -> None:
    path = write_steps(tmp_path, [counted(0, loss=1.0)]).path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_secrets_of_the_command_are_not_kept(tmp_path: Path) -> None:
    state = trained().state
    state.spec.command[:] = ["train.py", "--api-key", "s3cret"]
    history = write_state(tmp_path, state)
    kept = history.kept_state("i")
    assert kept is not None
    assert list(kept[1].spec.command) == history.starts()[0].spec["command"] == ["train.py", "--api-key", HIDDEN]
    assert list(state.spec.command) == ["train.py", "--api-key", "s3cret"]


def test_a_step_that_a_new_leader_counts_again_is_kept_once(tmp_path: Path) -> None:
    write_steps(tmp_path, [counted(step, loss=1.0) for step in range(3)])
    history = write_steps(tmp_path, [counted(step, loss=1.0) for step in range(1, 5)])
    assert [one.step for one in history.steps_after("i", -1)] == [0, 1, 2, 3, 4]


def test_a_new_run_of_the_same_name_has_rows_of_its_own(tmp_path: Path) -> None:
    write_steps(tmp_path, [counted(0, loss=1.0)], instance="first")
    history = write_steps(tmp_path, [counted(0, loss=2.0)], instance="second")
    assert [start.instance for start in history.starts()] == ["first", "second"]
    assert history.curve("first", "loss").mean == [1.0]
    assert history.curve("second", "loss").mean == [2.0]


def test_settings_and_status_come_back_as_plain_fields(tmp_path: Path) -> None:
    history = write_state(tmp_path, trained().state)
    (start,) = history.starts()
    assert (start.spec["mode"], start.spec["preset"], start.spec["world_size"]) == ("act", "fast", 4)
    kept = final(history)
    assert (kept["phase"], kept["newest_step"], kept["history_unix_s"]) == ("running", 2, 5.0)
    assert "ranks" not in kept


def test_the_settings_fill_in_a_start_of_which_only_steps_were_known(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(0, loss=1.0)])
    assert history.starts()[0].spec == {}
    write_state(tmp_path, trained().state)
    write_steps(tmp_path, [counted(1, loss=1.0)])
    (start,) = history.starts()
    assert start.spec["run"] == "r"


def test_the_slowest_ranks_are_named(tmp_path: Path) -> None:
    state = trained().state
    (name,) = state.nodes
    node = store.NodeState()
    node.CopyFrom(state.nodes[name])
    for rank in node.ranks:
        rank.device_own_s, rank.device_steps = 10.0 + rank.rank, 10
    slowest = final(write_state(tmp_path, replace(state, nodes={name: node})))["slowest_ranks"]
    assert [one["rank"] for one in slowest] == [3, 2, 1, 0]
    assert slowest[0]["own_step_s"] == 1.3


def test_a_status_that_cannot_be_made_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_file, "status_fields", lambda state, now: {"step_s": math.nan})
    batch = StartRows(steps=[counted(0, loss=1.0)], state=trained().state, state_unix_s=5.0)
    HistoryFile(tmp_path, "r").write([("i", batch)])
    history = RunHistory(run_files.history(tmp_path, "r"))
    assert history.curve("i", "loss").mean == [1.0]
    assert history.final("i") is None
    assert "is not renewed" in caplog.text


def test_the_status_of_an_ended_run_is_not_replaced_by_a_later_one(tmp_path: Path) -> None:
    state = trained().state
    record = store.CoordinatorState()
    record.CopyFrom(state.record)
    record.phase, record.outcome = store.RUN_PHASE_FINISHED, "finished"
    ended = replace(state, record=record)
    for unix_s, one in ((1.0, state), (2.0, ended), (3.0, replace(ended, nodes={}))):
        history = write_state(tmp_path, one, unix_s)
    assert (final(history)["outcome"], final(history)["history_unix_s"]) == ("finished", 2.0)


def test_a_foreign_file_is_set_aside_and_a_new_one_begins(tmp_path: Path) -> None:
    path = run_files.history(tmp_path, "r")
    damage(path)
    assert write_steps(tmp_path, [counted(0, loss=1.0)]).curve("i", "loss").mean == [1.0]
    (other,) = path.parent.glob("r.damaged-*.sqlite")
    assert run_files.is_set_aside_history(other)
    assert other.read_bytes().startswith(b"not a database")


def test_a_database_of_somebody_else_is_set_aside(tmp_path: Path) -> None:
    path = run_files.history(tmp_path, "r")
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE steps (mine)")
    assert write_steps(tmp_path, [counted(0, loss=1.0)]).curve("i", "loss").mean == [1.0]
    assert len(list(path.parent.glob("r.damaged-*.sqlite"))) == 1


def test_the_history_of_another_version_is_set_aside_under_what_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = run_files.history(tmp_path, "r")
    write_steps(tmp_path, [counted(0, loss=1.0)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    assert write_steps(tmp_path, [counted(0, loss=2.0)]).curve("i", "loss").mean == [2.0]
    (other,) = (one for one in path.parent.iterdir() if one != path)
    assert other.name.startswith("r.version-7-")
    assert run_files.is_set_aside_history(other)
    assert not run_files.is_set_aside_history(path)
    (line,) = (one for one in caplog.messages if "version 7" in one)
    assert line == (
        f"{path} is a history of version 7, and this Holdfast reads version 1: read it with the version of Holdfast "
        f"that wrote it; it is now {other.name}, and a new one begins"
    )
    assert "damaged" not in caplog.text


def test_a_disk_that_damages_every_file_does_not_fill_up(tmp_path: Path) -> None:
    file, path = HistoryFile(tmp_path, "r"), run_files.history(tmp_path, "r")
    for _ in range(4):
        file.write([("i", StartRows(steps=[counted(0, loss=1.0)]))])
        damage(path)
    with pytest.raises(sqlite3.DatabaseError):
        file.write([("i", StartRows(steps=[counted(0, loss=1.0)]))])
    assert len(list(path.parent.glob("r.damaged-*.sqlite"))) == 3


def test_two_daemons_that_create_the_file_together_set_nothing_aside(tmp_path: Path) -> None:
    path = run_files.history(tmp_path, "r")
    write_steps(tmp_path, [counted(0, loss=1.0)])
    # What a daemon does that saw the empty file just before another one created the tables.
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN EXCLUSIVE; {history_tables._TABLES} COMMIT;")
    assert write_steps(tmp_path, [counted(1, loss=1.0)]).curve("i", "loss").step == [0, 1]
    assert not list(path.parent.glob("*.damaged-*"))


_WRITES = """
import sys
from pathlib import Path
from tests.support.histories import counted, write_steps
for step in range(100_000):
    write_steps(Path(sys.argv[1]), [counted(step, loss=1.0)])
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_all_that_it_had_written(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path.cwd()) as process:
        assert process.stdout is not None
        written = -1
        while written < 30:
            written = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        rest = process.stdout.read().split()
    newest = max([written, *map(int, rest)])
    history = write_steps(tmp_path, [counted(newest + 5, loss=1.0)])
    steps = [one.step for one in history.steps_after("i", -1)]
    assert (steps[: newest + 1], steps[-1]) == (list(range(newest + 1)), newest + 5)


def test_an_unfinished_commit_of_a_killed_writer_is_undone_by_the_next_reader(tmp_path: Path) -> None:
    history = write_steps(tmp_path, [counted(step, loss=1.0) for step in range(500)])
    killed = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size = 1')\n"  # the pages that change are on disk before the commit
        "connection.execute('BEGIN')\n"
        "connection.execute('UPDATE steps SET loss = 7.0')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", killed, str(history.path)], check=False)
    assert Path(f"{history.path}-journal").exists()
    assert set(history.curve("i", "loss").mean) == {1.0}


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "STEPS_KEPT", 1000)
    monkeypatch.setattr(thinning, "OLD_STEPS_KEPT", 200)
    monkeypatch.setattr(thinning, "PART_STEPS", 400)
    monkeypatch.setattr(thinning, "STARTS_KEPT", 2)


@pytest.mark.usefixtures("few_rows")
def test_old_steps_become_buckets_and_the_curve_stays_the_same(tmp_path: Path) -> None:
    losses = [float(step % 50) for step in range(10_000)]
    for begin in range(0, 10_000, 100):
        steps = [
            counted(step, loss=losses[step], nonfinite=("grad_norm",) if step == 333 else ())
            for step in range(begin, begin + 100)
        ]
        history = write_steps(tmp_path, steps)
    with closing(sqlite3.connect(history.path)) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM steps").fetchone()
        (counter,) = connection.execute("SELECT kept_steps FROM starts").fetchone()
        (buckets,) = connection.execute("SELECT count(*) FROM thinned").fetchone()
    assert kept == counter <= 1400
    assert buckets == (10_000 - kept) / thinning.BUCKET_STEPS
    curve = history.curve("i", "loss", points=10)
    assert curve.step == [999, 1999, 2999, 3999, 4999, 5999, 6999, 7999, 8999, 9999]
    assert (set(curve.mean), set(curve.low), set(curve.high)) == ({24.5}, {0.0}, {49.0})
    assert history.curve("i", "grad_norm", points=100).nonfinite == [300]


@pytest.mark.usefixtures("few_rows")
def test_earlier_starts_keep_less_and_the_oldest_go(tmp_path: Path) -> None:
    for instance in ("first", "second", "third"):
        history = write_steps(tmp_path, [counted(step, loss=1.0) for step in range(900)], instance=instance)
    for step in range(900, 910):
        write_steps(tmp_path, [counted(step, loss=1.0)], instance="third")
    assert [start.instance for start in history.starts()] == ["second", "third"]
    with closing(sqlite3.connect(history.path)) as connection:
        rows = connection.execute("SELECT start, count(*) FROM steps GROUP BY start").fetchall()
    assert rows == [(2, 500), (3, 910)]
    assert history.curve("second", "loss", points=5).mean == [1.0] * 5
