"""An agent's reports about the processes of ranks that make no progress."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.movement import tree_watch
from holdfast_agent.movement.process_table import parse_stat
from holdfast_agent.movement.tree_reader import Machine, UnknownError
from holdfast_agent.movement.tree_sample import IoCounters, ProcessSample, TreeSample
from holdfast_agent.movement.tree_watch import Stillness, TreeWatch
from holdfast_agent.processes.rank import TreeView
from holdfast_base.threads import in_daemon_thread
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import Progress
from tests.agent.movement.test_process_tree_reading import stat_line
from tests.support.coroutines import end, until
from tests.support.nodes import RecordedNode, begin, make_node
from tests.support.trees import running
from tests.support.virtual_time import on_virtual_time

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
COMPUTES = "print('ready', flush=True)\nwhile True: pass"
TICK_S = 0.05
NO_IO = IoCounters()


@contextlib.asynccontextmanager
async def watched(folder: Path, *pids: int) -> AsyncIterator[RecordedNode]:
    """Yield a node whose ranks are these processes, and let time pass for it."""
    time_s = asyncio.get_running_loop().time

    async def pass_time() -> None:
        last = time_s()
        while True:
            await asyncio.sleep(TICK_S)
            now = time_s()
            node.pass_time(now - last)
            last = now

    node = make_node(folder)
    begin(node, 1, dict(enumerate(pids)))
    tasks = [asyncio.create_task(pass_time()), asyncio.create_task(TreeWatch(node).run())]
    try:
        yield node
    finally:
        await end(*tasks)


PIDS = (2**30, 2**30 + 1)
"""Numbers that no process has."""


@dataclass
class Trees:
    """Process trees without processes. A look at one takes no time, but for what a test adds."""

    computing: tuple[int, ...] = ()
    """Pids of those that compute all the time."""
    cost_s: float = 0.0
    """CPU seconds of a look."""
    free: dict[int, asyncio.Event] | None = None
    """Pid -> event without which no look at its tree returns."""


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Trees:
    it = Trees()

    class Reader:
        def __init__(self, root: tuple[int, int], **_: Any) -> None:
            self.pid = root[0]

        def read(self, _: Machine) -> TreeSample:
            now_s = asyncio.get_running_loop().time()
            return sample(now_s, ran_s=now_s if self.pid in it.computing else 1.0)

    async def in_no_thread(call: Any) -> Any:
        return call()

    read = tree_watch._read

    async def wait_and_read(reader: Any, machine: Any) -> Any:
        if it.free and reader.pid in it.free:
            await it.free[reader.pid].wait()
        return await read(reader, machine)

    monkeypatch.setattr(Machine, "read", lambda: Machine({}, {}))
    monkeypatch.setattr(tree_watch, "TreeReader", Reader)
    monkeypatch.setattr(tree_watch, "_read", wait_and_read)
    monkeypatch.setattr(tree_watch, "in_daemon_thread", in_no_thread)
    monkeypatch.setattr(time, "thread_time", lambda: it.cost_s)
    return it


def published(node: RecordedNode, rank: int = 0) -> store.RankState:
    return node.state(ready=True).ranks[rank]


async def progress(node: RecordedNode, step: int, rank: int = 0, *, finished: bool = False) -> None:
    report = session.Report(progress=Progress(step=step), finished=finished)
    await node.messages.receive(node.ranks[rank], session.RankMessage(report=report))


@on_virtual_time
async def test_seconds_of_stillness_keep_up_with_a_stall(folder: Path, trees: Trees) -> None:
    async with watched(folder, PIDS[0]) as node:
        while (state := published(node)).stalled_s < 5.0:
            # It is watched after half a second, and a look comes every second.
            assert state.stalled_s - 2.0 < state.still_s <= state.stalled_s
            await asyncio.sleep(TICK_S)
        assert (state.moved, state.traced, state.workers) == ("", False, 0)


@on_virtual_time
async def test_a_rank_that_computes_is_never_still(folder: Path, trees: Trees) -> None:
    trees.computing = PIDS
    async with watched(folder, PIDS[0]) as node:
        while node.tree_look_attempts_total < 10:
            assert published(node).still_s == 0.0
            await asyncio.sleep(TICK_S)
        assert published(node).moved == "cpu"


@on_virtual_time
async def test_progress_wipes_out_what_was_seen_before(folder: Path, trees: Trees) -> None:
    async with watched(folder, PIDS[0]) as node:
        await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
        await progress(node, step=4)
        state = published(node)
        assert (state.stalled_s, state.still_s, state.moved, state.workers) == (0.0, 0.0, "", 0)
        await until(lambda: published(node).still_s >= 1.0, "it is still again")
        assert published(node).stalled_s >= 1.0


@on_virtual_time
async def test_a_rank_that_makes_progress_is_not_looked_at(folder: Path, trees: Trees) -> None:
    async with watched(folder, *PIDS) as node:
        step = 0
        while published(node, 1).still_s < 1.0:
            step += 1
            await progress(node, step)
            await asyncio.sleep(0.1)
        assert node.ranks[0].tree == TreeView()
        assert node.tree_look_attempts_total <= 1 + published(node, 1).stalled_s / tree_watch.INTERVAL_S


@on_virtual_time
async def test_a_rank_that_has_left_training_is_watched_though_its_stall_does_not_count(
    folder: Path, trees: Trees
) -> None:
    async with watched(folder, PIDS[0]) as node:
        assert not published(node).left_training
        await progress(node, step=4, finished=True)
        assert published(node).left_training
        await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
        assert published(node).stalled_s == 0.0
        node.ranks[0].finish(store.RankExit(code=0), None)
        state = published(node)
        assert (state.left_training, state.still_s) == (False, 0.0)


@pytest.mark.parametrize("failure", [UnknownError("refused"), ZeroDivisionError()])
@on_virtual_time
async def test_what_cannot_be_known_is_no_stillness_and_is_counted(
    folder: Path, trees: Trees, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail() -> Machine:
        raise failure

    async with watched(folder, PIDS[0]) as node:
        await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
        with monkeypatch.context() as while_it_fails:
            while_it_fails.setattr(Machine, "read", fail)
            await until(lambda: node.tree_look_failures_total == 1, "a look has failed")
            assert published(node).still_s == 0.0
        await until(lambda: published(node).still_s >= 1.0, "it is still again")
        assert node.tree_look_failures_total == 1


@on_virtual_time
async def test_a_look_that_blocks_delays_nothing_else(folder: Path, trees: Trees) -> None:
    trees.free = {PIDS[0]: asyncio.Event()}
    async with watched(folder, *PIDS) as node:
        await until(lambda: published(node, 1).still_s >= 2.0, "the other has been still for 2 s")
        await until(lambda: node.tree_look_failures_total, "its patience has ended")
        await until(lambda: published(node, 1).still_s >= 8.0, "the other has been still for 8 s")
        assert published(node).still_s == 0.0
        assert node.tree_look_failures_total == 1
        trees.free[PIDS[0]].set()
        await until(lambda: published(node).still_s >= 1.0, "it is known again")


async def test_a_call_that_blocks_its_thread_holds_up_neither_the_loop_nor_another_call() -> None:
    reader, writer = os.pipe()
    blocked = asyncio.ensure_future(in_daemon_thread(lambda: os.read(reader, 1)))
    assert await in_daemon_thread(os.getpid) == os.getpid()
    assert not blocked.done()
    os.close(writer)
    assert await blocked == b""
    os.close(reader)


@on_virtual_time
async def test_a_tree_that_costs_much_to_read_is_read_less_often_even_if_its_rank_moves(
    folder: Path, trees: Trees
) -> None:
    trees.cost_s = 0.5
    async with watched(folder, PIDS[0]) as node:
        await until(lambda: published(node).stalled_s >= 2.5, "it has stalled for 2.5 s")
        await progress(node, step=4)
        await until(lambda: published(node).stalled_s >= 1.0, "it has stalled for 1 s")
        assert node.tree_look_attempts_total == 1
        await until(lambda: node.tree_look_attempts_total == 2, "it is looked at again")
        assert node.clock_s >= trees.cost_s / tree_watch.LARGEST_SHARE


@on_virtual_time
async def test_a_rank_that_py_spy_holds_for_us_is_not_looked_at(folder: Path, trees: Trees) -> None:
    async with watched(folder, PIDS[0]) as node:
        node.ranks[0].held_for_stacks = True
        await until(lambda: published(node).stalled_s >= 1.5, "it has stalled for 1.5 s")
        assert node.tree_look_attempts_total == 0
        node.ranks[0].held_for_stacks = False
        await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")


@pytest.mark.system
async def test_a_process_that_computes_is_still_while_it_is_stopped_and_has_moved_when_it_continues(
    folder: Path,
) -> None:
    with running(COMPUTES) as computing, running(SLEEPS) as sleeping:
        async with watched(folder, computing.pid, sleeping.pid) as node:
            await until(lambda: published(node).moved == "cpu", "its movement is seen")
            assert published(node).still_s == 0.0
            os.kill(computing.pid, signal.SIGSTOP)
            await until(lambda: published(node).still_s >= 1.0, "it has been still for 1 s")
            assert published(node).process_state == "T"
            await until(lambda: published(node, 1).still_s >= 1.0, "the other has been still for 1 s")
            before_s = published(node, 1).stalled_s
            os.kill(computing.pid, signal.SIGCONT)
            await until(lambda: published(node).process_state == "R", "it is seen to continue")
            state = published(node)
            assert state.stalled_s < before_s
            assert state.still_s == 0.0
            assert published(node, 1).stalled_s >= before_s


def sample(
    at_s: float, *, call: str = "202", traced: bool = False, ran_s: float = 1.0, io: IoCounters = NO_IO, turns: int = 0
) -> TreeSample:
    stat = parse_stat(10, stat_line(10))
    assert stat is not None
    process = ProcessSample(replace(stat, cpu_s=ran_s), io=io)
    return TreeSample({(10, 7): process}, {}, call=call, traced=traced, workers=0, at_s=at_s, turns=turns)


def at(stillness: Stillness, at_s: float, *, pauses: int = 0, **fields: Any) -> TreeView:
    """Observe a look that takes no time."""
    return stillness.observe(sample(at_s, **fields), began_s=at_s, ended_s=at_s, pauses=pauses)


def test_stillness_lasts_from_the_end_of_one_look_to_the_beginning_of_a_later_one() -> None:
    stillness = Stillness()
    assert stillness.observe(sample(0.0), began_s=0.0, ended_s=0.5).still_s == 0.0
    assert stillness.observe(sample(1.0), began_s=1.0, ended_s=1.5).still_s == 0.5
    assert stillness.observe(sample(2.0), began_s=2.0, ended_s=2.5).still_s == 1.5
    assert stillness.observe(sample(3.0, call="0 0x1"), began_s=3.0, ended_s=3.5) == TreeView(moved="cpu")
    assert stillness.observe(sample(4.0, call="0 0x1"), began_s=4.0, ended_s=4.5) == TreeView(0.5, moved="cpu")


def test_a_wake_up_is_a_sign_of_life_unless_this_agent_has_caused_it() -> None:
    stillness = Stillness()
    at(stillness, 0.0, turns=5)
    at(stillness, 1.0, turns=5)
    woken = at(stillness, 2.0, turns=6)
    assert (woken.sign_of_life, woken.sign_age_s, woken.still_s) == ("wakes", 0.0, 2.0)
    paused = at(stillness, 3.0, turns=9, pauses=1)
    assert (paused.sign_of_life, paused.sign_age_s) == ("wakes", 1.0)
    asleep = at(stillness, 4.0, turns=9, pauses=1)
    assert (asleep.sign_age_s, asleep.still_s) == (2.0, 4.0)


def test_only_what_follows_a_pause_is_a_sign_that_the_script_waits_with_pauses() -> None:
    transfer, stillness = [IoCounters(4096 * second, 40 * second, second, second) for second in range(6)], Stillness()
    for second, io in enumerate(transfer):
        moving = at(stillness, second, io=io, turns=1 + second)
    last = transfer[-1].plus(IoCounters(written_bytes=40, writes=1))  # the next request, which nobody answers
    stopped = at(stillness, 6, io=last, turns=7)
    assert (moving.moved, moving.sign_of_life, stopped.sign_of_life, stopped.still_s) == ("disk", "", "", 1.0)
    again = last.plus(IoCounters(8192, 8192, 1, 1))
    tries = at(stillness, 9, io=again, turns=9)
    assert (tries.moved, tries.sign_of_life, tries.still_s) == ("disk", "writes", 0.0)


def test_time_in_which_a_debugger_is_attached_is_no_stillness() -> None:
    stillness = Stillness()
    for at_s in (0.0, 10.0, 20.0):
        view = at(stillness, at_s, traced=True)
        assert (view.still_s, view.traced) == (0.0, True)
    assert at(stillness, 30.0).still_s == 10.0


def test_a_window_in_which_the_agent_was_suspended_forgives_no_more_computing_than_a_usual_one() -> None:
    stillness = Stillness()
    at(stillness, 0.0)
    assert stillness.observe(sample(3600.0, ran_s=2.0), began_s=1.0, ended_s=1.0).moved == "cpu"


def test_a_line_of_a_log_and_wake_ups_are_no_movement_but_a_trickle_is() -> None:
    stillness = Stillness()
    wakes = [IoCounters(8 * 10 * second, 8 * 10 * second, 10 * second, 10 * second) for second in range(60)]
    line = IoCounters(written_bytes=200, writes=1)
    for second, io in enumerate(wakes):
        now = io.plus(line) if second >= 10 else io
        view = at(stillness, second, io=now)
    assert view == TreeView(still_s=59.0, sign_of_life="writes", sign_age_s=49.0)
    trickle = [wakes[-1].plus(IoCounters(written_bytes=200 + 60 * second, writes=1 + second)) for second in range(60)]
    longest_s = 0.0
    for second, io in enumerate(trickle, 60):
        view = at(stillness, second, io=io)
        longest_s = max(longest_s, view.still_s if second >= 65 else 0.0)
    assert view.moved == "disk"
    assert longest_s < 10.0
    from_disk = trickle[-1].plus(IoCounters(disk_bytes=1))
    view = at(stillness, 120, io=from_disk)
    assert (view.moved, view.still_s) == ("disk", 0.0)
