"""The thread that writes histories: it loses no rows on purpose, and nothing that fails reaches a tick."""

import logging
import math
import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast_daemon.history import history_writer
from holdfast_daemon.history.history_file import HistoryFile
from holdfast_daemon.history.history_reader import RunHistory
from holdfast_daemon.history.history_writer import HistoryQueue, HistoryWriter
from holdfast_proto import run_files
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World
from tests.support.coroutines import until
from tests.support.fake_agent import RUN, FakeAgent
from tests.support.shells import daemon, publish_spec, train
from tests.support.store_server import StoreServer
from tests.support.tmpfs import mounted_tmpfs


def summary(step: int, generation: int = 1) -> store.StepSummary:
    return store.StepSummary(step=step, generation=generation, loss_sum=2.0, loss_count=1, ended_unix_s=1.0)


def steps(directory: Path, run: str = "r", instance: str = "i") -> list[int]:
    return [one.step for one in RunHistory(run_files.history(directory, run)).steps_after(instance, -1, limit=10_000)]


def add_steps(queue: HistoryQueue, *steps: int) -> None:
    for step in steps:
        queue.add_step("i", summary(step))


def log(world: World, step: int, value: float = 1.0) -> None:
    """Let the script log a number at a step."""
    logged = [common.LoggedNumber(name="kl", value=value, step=step)]
    world.events.append(store.Event(node="node0", generation=1, numbers_logged=store.NumbersLogged(numbers=logged)))
    world.tick()


def by_hand(directory: Path) -> HistoryQueue:
    """Return a queue that only the test writes. A thread would write too, as soon as the test takes a second."""
    return HistoryQueue("r", HistoryFile(directory, "r"), wake=lambda: None)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the last batch for longer than any disk takes."""
    monkeypatch.setattr(history_writer, "CLOSE_S", 60.0)


def test_rows_are_on_disk_when_the_writer_has_closed(tmp_path: Path) -> None:
    histories = HistoryWriter(tmp_path)
    queue = histories.queue("r")
    for step in range(100):
        queue.add_step("i", summary(step))
    histories.close()
    assert steps(tmp_path) == list(range(100))
    assert (queue.rows_total, queue.dropped_total, queue.write_failures_total) == (100, 0, 0)


def test_a_standby_has_no_thread_and_no_file(tmp_path: Path) -> None:
    histories = HistoryWriter(tmp_path)
    histories.queue("r")
    histories.close()
    assert histories._thread is None
    assert not (tmp_path / "history").exists()


def test_a_folder_that_cannot_be_is_logged_once_and_the_rows_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "RETRY_S", 0.0)
    blocker = tmp_path / "history"
    blocker.write_text("a file in place of the folder")
    queue = by_hand(tmp_path)
    with caplog.at_level(logging.ERROR):
        for step in range(3):
            queue.add_step("i", summary(step))
            queue.write()
    assert (queue.writes_total, queue.write_failures_total, queue.dropped_total) == (3, 3, 0)
    assert len(caplog.records) == 1
    assert "a batch of its history cannot be written" in caplog.text
    blocker.unlink()
    queue.write()
    assert steps(tmp_path) == [0, 1, 2]


def test_rows_wait_for_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_writer, "RETRY_S", 0.0)
    with mounted_tmpfs(tmp_path / "disk", "1m") as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes((1 << 20) - (64 << 10)))
        queue = by_hand(disk)
        for step in range(5000):
            queue.add_step("i", summary(step))
        queue.write()
        assert queue.write_failures_total == 1
        filler.unlink()
        queue.write()
        assert steps(disk) == list(range(5000))
        assert queue.dropped_total == 0


def test_a_leader_and_its_successor_may_write_the_same_steps(tmp_path: Path) -> None:
    leaders = [HistoryWriter(tmp_path), HistoryWriter(tmp_path)]
    for first, leader in zip((0, 5), leaders, strict=True):
        add_steps(leader.queue("r"), *range(first, first + 10))
    for leader in leaders:
        leader.close()
    assert steps(tmp_path) == list(range(15))
    assert [leader.queue("r").write_failures_total for leader in leaders] == [0, 0]


def test_a_failed_batch_is_not_tried_again_immediately(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("")
    queue = by_hand(tmp_path)
    queue.add_step("i", summary(0))
    queue.write()
    queue.write()
    assert queue.writes_total == 1


def test_too_many_rows_that_wait_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_writer, "MOST_WAITING", 10)
    (tmp_path / "history").write_text("")
    queue = by_hand(tmp_path)
    for step in range(12):
        queue.add_step("i", summary(step))
        queue.write(is_last=True)
    assert (queue.rows_total, queue.dropped_total) == (12, 2)


def test_what_the_script_logs_leaves_room_for_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_writer, "MOST_WAITING", 10)
    world, queue = World(), by_hand(tmp_path)
    world.until("starting")
    world.train(1)
    for step in range(9):
        log(world, step)
        queue.see_state(world.state, 1_000.0)
    for step in range(9):
        queue.add_step("i", summary(step))
    queue.write()
    assert steps(tmp_path) == [0, 1, 2, 3, 4]
    assert queue.dropped_total == 8


def test_a_row_that_no_file_can_hold_is_dropped_and_the_next_ones_are_kept(tmp_path: Path) -> None:
    queue = by_hand(tmp_path)
    queue.add_step("i", summary(0, generation=2**64 - 1))
    queue.write()
    queue.add_step("i", summary(1))
    queue.write()
    assert steps(tmp_path) == [1]
    assert (queue.dropped_total, queue.write_failures_total, queue.writes_total) == (1, 1, 2)


def test_one_run_whose_file_fails_does_not_keep_the_others_from_theirs(tmp_path: Path) -> None:
    histories = HistoryWriter(tmp_path)
    run_files.history(tmp_path, "bad").mkdir(parents=True)
    for run in ("bad", "good"):
        histories.queue(run).add_step("i", summary(0))
    histories.close()
    assert steps(tmp_path, "good") == [0]
    assert histories.queue("bad").write_failures_total == 1


def test_a_status_is_kept_when_something_changes_or_some_time_has_passed(tmp_path: Path) -> None:
    world = World()
    world.until("starting")
    queue = by_hand(tmp_path)

    def kept(now: float) -> bool:
        queue.see_state(world.state, now)
        is_new = not queue.is_empty
        queue.write()
        return is_new

    assert [kept(now) for now in (1.0, 2.0, 40.0, 41.0)] == [True, False, True, False]
    world.train(1)
    assert kept(42.0)


def test_new_values_of_what_the_script_logs_are_kept_and_memory_now_and_then(tmp_path: Path) -> None:
    world, queue = World(), by_hand(tmp_path)
    world.until("starting")
    world.train(2)
    for number in range(4):
        world.rank(number).memory.allocated_bytes = 100 + number
    for at, (step, value) in enumerate([(0, 0.5), (0, 0.5), (1, math.nan), (1, math.nan), (-1, 3.0)]):
        log(world, step, value)
        queue.see_state(world.state, 1_000.0 + at)
    queue.add_step("i", summary(1))
    queue.write()
    with sqlite3.connect(run_files.history(tmp_path, "r")) as connection:
        rows = connection.execute("SELECT name, step, value FROM metrics ORDER BY name, step").fetchall()
    assert rows == [("logged:kl", 0, 0.5), ("logged:kl", 1, None), ("memory_bytes", 2, 103.0)]


def test_no_row_waits_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_writer, "EVERY_S", 0.0)
    histories = HistoryWriter(tmp_path)
    queue = histories.queue("r")
    entered, answers = threading.Event(), threading.Event()

    def write(_file: HistoryFile, _batches: object) -> None:
        entered.set()
        answers.wait()

    monkeypatch.setattr(HistoryFile, "write", write)
    queue.add_step("i", summary(0))
    assert entered.wait(30)
    for step in range(1, 1000):
        queue.add_step("i", summary(step))
    assert not answers.is_set()
    assert queue.rows_total == 1000
    answers.set()
    histories.close()


async def test_the_leader_writes_the_history_of_its_run(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent, steps=3)
        await until(lambda: it.shell.state and it.shell.state.totals.steps == 3, "the numbers of all steps are there")
        instance = agent.commands[0].instance
    history = RunHistory(run_files.history(folder, RUN))
    assert [one.step for one in history.steps_after(instance, -1)] == [0, 1, 2]
    assert history.starts()[0].spec["run"] == RUN
    assert history.final(instance) is not None
