"""An agent's reports about the processes of ranks that make no progress."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_agent.movement import tree_watch
from holdfast_agent.movement.process_table import parse_stat
from holdfast_agent.movement.tree_reader import Machine, TreeReader, UnknownError
from holdfast_agent.movement.tree_sample import IoCounters, ProcessSample, TreeSample
from holdfast_agent.movement.tree_watch import Stillness, TreeWatch
from holdfast_agent.processes.rank import TreeView
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import Progress
from tests.agent.movement.test_process_tree_reading import stat_line
from tests.support.coroutines import end, until
from tests.support.nodes import RecordedNode, begin, make_node
from tests.support.trees import Running, running

pytestmark = pytest.mark.system

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
COMPUTES = "print('ready', flush=True)\nwhile True: pass"
TICK_S = 0.05
NO_IO = IoCounters()


@contextlib.asynccontextmanager
async def watched(folder: Path, *processes: Running) -> AsyncIterator[RecordedNode]:
    """Yield a node whose ranks are these processes, and let time pass for it."""

    async def pass_time() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            node.pass_time(now - last)
            last = now

    node = make_node(folder)
    begin(node, 1, {rank: process.pid for rank, process in enumerate(processes)})
    tasks = [asyncio.create_task(pass_time()), asyncio.create_task(TreeWatch(node).run())]
    try:
        yield node
    finally:
        await end(*tasks)


def published(node: RecordedNode, rank: int = 0) -> store.RankState:
    return node.state(ready=True).ranks[rank]


async def progress(node: RecordedNode, step: int, rank: int = 0, *, finished: bool = False) -> None:
    report = session.Report(progress=Progress(step=step), finished=finished)
    await node.messages.receive(node.ranks[rank], session.RankMessage(report=report))


async def test_seconds_of_stillness_keep_up_with_a_stall(folder: Path) -> None:
    with running(SLEEPS) as process:
        async with watched(folder, process) as node:
            await until(lambda: published(node).still_s >= 3.0, "it has been still for 3 s")
            state = published(node)
            assert state.stalled_s - 1.0 < state.still_s + 1.5
            assert state.still_s < state.stalled_s
            assert (state.moved, state.traced, state.workers) == ("", False, 0)


async def test_a_rank_that_computes_is_never_still(folder: Path) -> None:
    with running(COMPUTES) as process:
        async with watched(folder, process) as node:
            await until(lambda: published(node).moved == "cpu", "its movement is seen")
            looks = node.tree_look_attempts_total
            await until(
                lambda: published(node).still_s > 0.0 or node.tree_look_attempts_total >= looks + 3, "it was looked at"
            )
            assert published(node).still_s == 0.0


async def test_progress_wipes_out_what_was_seen_before(folder: Path) -> None:
    with running(SLEEPS) as process:
        async with watched(folder, process) as node:
            await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
            await progress(node, step=4)
            state = published(node)
            assert (state.stalled_s, state.still_s, state.moved, state.workers) == (0.0, 0.0, "", 0)
            await until(lambda: published(node).still_s >= 1.0, "it is still again")
            assert published(node).stalled_s >= 1.0


async def test_a_rank_that_makes_progress_is_not_looked_at(folder: Path) -> None:
    with running(SLEEPS) as busy, running(SLEEPS) as stuck:
        async with watched(folder, busy, stuck) as node:
            step = 0
            while published(node, 1).still_s < 1.0:
                step += 1
                await progress(node, step)
                await asyncio.sleep(0.1)
            assert node.ranks[0].tree == TreeView()
            assert node.tree_look_attempts_total <= 1 + published(node, 1).stalled_s / tree_watch.INTERVAL_S


async def test_a_rank_that_has_left_training_is_watched_though_its_stall_does_not_count(folder: Path) -> None:
    with running(SLEEPS) as process:
        async with watched(folder, process) as node:
            assert not published(node).left_training
            await progress(node, step=4, finished=True)
            assert published(node).left_training
            await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
            assert published(node).stalled_s == 0.0
            node.ranks[0].finish(store.RankExit(code=0), None)
            state = published(node)
            assert (state.left_training, state.still_s) == (False, 0.0)


async def test_what_cannot_be_known_is_no_stillness_and_is_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(SLEEPS) as process:
        async with watched(folder, process) as node:
            await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
            for failure in (UnknownError("refused"), ZeroDivisionError()):
                monkeypatch.setattr(Machine, "read", _fail_with(failure))
                failures = node.tree_look_failures_total
                await until(lambda before=failures: node.tree_look_failures_total > before, "a look has failed")  # type: ignore[misc]
                assert published(node).still_s == 0.0
                monkeypatch.undo()
                await until(lambda: published(node).still_s >= 1.0, "it is still again")


def _fail_with(error: Exception) -> classmethod:  # type: ignore[type-arg]
    def read(_: type[Machine]) -> Machine:
        raise error

    return classmethod(read)


async def test_a_look_that_blocks_delays_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_watch, "PATIENCE_S", 1.0)  # long enough for the other rank on a busy machine
    reader, writer = os.pipe()
    read = TreeReader.read

    def block(self: TreeReader, machine: Machine) -> TreeSample | None:
        if self._root[0] == stuck.pid:
            os.read(reader, 1)
        return read(self, machine)

    monkeypatch.setattr(TreeReader, "read", block)
    with running(SLEEPS) as stuck, running(SLEEPS) as other:
        async with watched(folder, stuck, other) as node:
            await until(lambda: published(node, 1).still_s >= 2.0, "the other has been still for 2 s")
            assert published(node).still_s == 0.0
            assert node.tree_look_failures_total == 1
            os.close(writer)
            await until(lambda: published(node).still_s >= 1.0, "it is known again")
    os.close(reader)


async def test_a_tree_that_costs_much_to_read_is_read_less_often_even_if_its_rank_moves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_watch, "LARGEST_SHARE", 1e-6)
    with running(SLEEPS) as process:
        async with watched(folder, process) as node:
            await until(lambda: published(node).stalled_s >= 2.5, "it has stalled for 2.5 s")
            await progress(node, step=4)
            await until(lambda: published(node).stalled_s >= 1.0, "it has stalled for 1 s")
            assert node.tree_look_attempts_total == 1


async def test_a_rank_that_py_spy_holds_for_us_is_not_looked_at(folder: Path) -> None:
    with running(SLEEPS) as process:
        async with watched(folder, process) as node:
            node.ranks[0].held_for_stacks = True
            await until(lambda: published(node).stalled_s >= 1.5, "it has stalled for 1.5 s")
            assert node.tree_look_attempts_total == 0
            node.ranks[0].held_for_stacks = False
            await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")


async def test_a_rank_that_was_stopped_and_continues_has_moved_and_the_others_have_not(folder: Path) -> None:
    with running(SLEEPS) as stopped, running(SLEEPS) as other:
        async with watched(folder, stopped, other) as node:
            await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
            os.kill(stopped.pid, signal.SIGSTOP)
            await until(lambda: published(node).process_state == "T", "it is seen stopped")
            before_s = published(node, 1).stalled_s
            os.kill(stopped.pid, signal.SIGCONT)
            await until(lambda: published(node).process_state == "S", "it is seen to continue")
            state = published(node)
            assert state.stalled_s < before_s
            assert state.still_s == 0.0
            assert published(node, 1).stalled_s >= before_s
            await until(lambda: published(node).still_s >= 1.0, "it is still again")


async def test_a_rank_that_is_stopped_is_still(folder: Path) -> None:
    with running(COMPUTES) as process:
        async with watched(folder, process) as node:
            os.kill(process.pid, signal.SIGSTOP)
            await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
            assert published(node).process_state == "T"


def sample(
    at_s: float, *, call: str = "202", traced: bool = False, ran_s: float = 1.0, io: IoCounters = NO_IO
) -> TreeSample:
    stat = parse_stat(10, stat_line(10))
    assert stat is not None
    process = ProcessSample(replace(stat, cpu_s=ran_s), io=io)
    return TreeSample({(10, 7): process}, {}, call=call, traced=traced, workers=0, at_s=at_s)


def test_stillness_lasts_from_the_end_of_one_look_to_the_beginning_of_a_later_one() -> None:
    stillness = Stillness()
    assert stillness.observe(sample(0.0), began_s=0.0, ended_s=0.5).still_s == 0.0
    assert stillness.observe(sample(1.0), began_s=1.0, ended_s=1.5).still_s == 0.5
    assert stillness.observe(sample(2.0), began_s=2.0, ended_s=2.5).still_s == 1.5
    assert stillness.observe(sample(3.0, call="0 0x1"), began_s=3.0, ended_s=3.5) == TreeView(moved="cpu")
    assert stillness.observe(sample(4.0, call="0 0x1"), began_s=4.0, ended_s=4.5) == TreeView(0.5, moved="cpu")


def test_time_in_which_a_debugger_is_attached_is_no_stillness() -> None:
    stillness = Stillness()
    for at_s in (0.0, 10.0, 20.0):
        view = stillness.observe(sample(at_s, traced=True), began_s=at_s, ended_s=at_s)
        assert (view.still_s, view.traced) == (0.0, True)
    assert stillness.observe(sample(30.0), began_s=30.0, ended_s=30.0).still_s == 10.0


def test_a_window_in_which_the_agent_was_suspended_forgives_no_more_computing_than_a_usual_one() -> None:
    stillness = Stillness()
    stillness.observe(sample(0.0), began_s=0.0, ended_s=0.0)
    assert stillness.observe(sample(3600.0, ran_s=2.0), began_s=1.0, ended_s=1.0).moved == "cpu"


def test_a_line_of_a_log_and_wake_ups_are_no_movement_but_a_trickle_is() -> None:
    stillness = Stillness()
    wakes = [IoCounters(8 * 10 * second, 8 * 10 * second, 10 * second, 10 * second) for second in range(60)]
    line = IoCounters(written_bytes=200, writes=1)
    for second, io in enumerate(wakes):
        now = io.plus(line) if second >= 10 else io
        view = stillness.observe(sample(second, io=now), began_s=second, ended_s=second)
    assert view == TreeView(still_s=59.0)
    trickle = [wakes[-1].plus(IoCounters(written_bytes=200 + 60 * second, writes=1 + second)) for second in range(60)]
    longest_s = 0.0
    for second, io in enumerate(trickle, 60):
        view = stillness.observe(sample(second, io=io), began_s=second, ended_s=second)
        longest_s = max(longest_s, view.still_s if second >= 65 else 0.0)
    assert view.moved == "disk"
    assert longest_s < 10.0
    from_disk = trickle[-1].plus(IoCounters(disk_bytes=1))
    assert stillness.observe(sample(120, io=from_disk), began_s=120, ended_s=120) == TreeView(moved="disk")
