"""What an agent reports of real ranks that make no progress: their places in the black box, and what they wait for."""

import asyncio
import contextlib
import itertools
import math
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast_agent.blocking import stall_watch
from holdfast_agent.blocking.stall_watch import INTERVAL_S, StallWatch
from holdfast_agent.processes.rank import Rank
from holdfast_proto import black_box
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_FORWARD_BACKWARD, PHASE_OPTIMIZER, Progress
from tests.support.coroutines import end, until
from tests.support.nodes import RecordedNode, begin, make_node
from tests.support.trees import Running, running

pytestmark = pytest.mark.system

TICK_S = 0.05
REPORTED = Progress(step=8, phase=PHASE_FORWARD_BACKWARD)
RANK = """
import sys, time
from pathlib import Path
from holdfast_proto.black_box import BlackBoxWriter

path = Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
box = BlackBoxWriter(path, run="run", generation=1, rank=0, world_size=2)
print("ready", flush=True)
for line in sys.stdin:
    step, phase = map(int, line.split())
    box.moment(step, phase, time.time_ns())
"""


@contextlib.asynccontextmanager
async def watched(node: RecordedNode, *ranks: Running) -> AsyncIterator[RecordedNode]:
    """Yield a node whose ranks are these processes and have reported their progress, and let time pass for it."""

    async def pass_time() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            node.pass_time(now - last)
            last = now

    begin(node, 1, {number: rank.pid for number, rank in enumerate(ranks)})
    for each in node.ranks.values():
        each.device = "cpu"
        each.apply(session.Report(progress=REPORTED), time.time())
    tasks = [asyncio.create_task(pass_time()), asyncio.create_task(StallWatch(node).run())]
    try:
        yield node
    finally:
        await end(*tasks)


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[Callable[[], None]]:
    """Take all free descriptors of this process, and again those that it frees whenever the function is called."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    taken: list[int] = []

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    take()
    try:
        yield take
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


@pytest.fixture
def node(folder: Path) -> RecordedNode:
    return make_node(folder)


@pytest.fixture
def rank(node: RecordedNode) -> Iterator[Running]:
    """A rank with a black box, which enters the step and the phase that it is told."""
    with running(RANK, str(node.options.black_box(1, 0))) as process:
        yield process


def published(node: RecordedNode, number: int = 0) -> store.RankState:
    return node.state(ready=True).ranks[number]


def place(node: RecordedNode) -> tuple[int, int]:
    progress = published(node).progress
    return progress.step, progress.phase


def box_shows(node: RecordedNode, step: int) -> bool:
    return black_box.read_moment(node.options.black_box(1, 0)).step == step


async def test_a_stopped_rank_is_where_its_black_box_says(node: RecordedNode, rank: Running) -> None:
    rank.say(f"12 {PHASE_OPTIMIZER}")
    await until(lambda: box_shows(node, 12), "the rank has entered step 12")
    os.kill(rank.pid, signal.SIGSTOP)
    async with watched(node, rank):
        await until(lambda: place(node) == (12, PHASE_OPTIMIZER), "the agent reports the exact place")
        assert published(node).stalled_s > 0.0  # the rank got there before it was stopped, not now
        assert published(node).process_state == "T"


async def test_the_place_of_a_stopped_rank_is_known_before_it_has_stalled_for_long(
    node: RecordedNode, rank: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_watch, "STALLED_AFTER_S", math.inf)
    rank.say(f"12 {PHASE_OPTIMIZER}")
    await until(lambda: box_shows(node, 12), "the rank has entered step 12")
    async with watched(node, rank):
        os.kill(rank.pid, signal.SIGSTOP)
        await until(lambda: place(node) == (12, PHASE_OPTIMIZER), "the agent reports the exact place")


async def test_a_silent_rank_that_moves_does_not_stall(node: RecordedNode, rank: Running) -> None:
    rank.say(f"12 {PHASE_DATA}")
    async with watched(node, rank):
        await until(lambda: place(node) == (12, PHASE_DATA), "the agent has read the box")
        moves, before_unix_s = node.ranks[0].moves_total, time.time()
        rank.say(f"12 {PHASE_OPTIMIZER}")
        await until(lambda: node.ranks[0].moves_total > moves, "that ends the stall")
        assert place(node) == (12, PHASE_OPTIMIZER)
        assert before_unix_s <= node.ranks[0].last_progress_unix_s <= time.time()
        await until(lambda: published(node).stalled_s > 1.0, "then it stands still")


async def test_an_agent_that_can_see_nothing_of_a_rank_reports_no_stall(node: RecordedNode, rank: Running) -> None:
    rank.say(f"12 {PHASE_DATA}")
    async with watched(node, rank):
        await until(lambda: published(node).stalled_s > 1.0, "it stands still")
        with no_free_descriptor() as take:
            moves = node.ranks[0].moves_total

            def begins_anew() -> bool:
                take()  # what tests before this one have left behind may be closed only now
                return node.ranks[0].moves_total >= moves + 2

            await until(begins_anew, "the stall begins anew with every look")
            node.ranks[0].channel.outbox = asyncio.Queue()
            await until(lambda: published(node).stalled_s > 1.0, "a rank with a session could report")


async def test_a_report_is_newer_than_a_box_that_was_read_before(node: RecordedNode, rank: Running) -> None:
    rank.say(f"12 {PHASE_DATA}")
    async with watched(node, rank):
        await until(lambda: place(node) == (12, PHASE_DATA), "the agent has read the box")
        node.ranks[0].apply(session.Report(progress=Progress(step=13, phase=PHASE_DATA)), time.time())
        assert place(node) == (13, PHASE_DATA)


@pytest.mark.parametrize("flaw", ["none", "garbage", "of another process", "out of range"])
async def test_without_a_box_that_makes_sense_the_reported_place_stays(
    node: RecordedNode, rank: Running, flaw: str
) -> None:
    path = node.options.black_box(1, 0)
    match flaw:
        case "none":
            path.unlink()
        case "garbage":
            path.write_bytes(b"not one")
        case "of another process":
            black_box.BlackBoxWriter(path, run="run", generation=1, rank=0, world_size=2).moment(99, 3, 1)
        case "out of range":
            rank.say("-7 99")
            await until(lambda: box_shows(node, -7), "the rank writes garbage")
    async with watched(node, rank):
        await until(lambda: published(node).HasField("blocked_on"), "the agent has looked at it")
        assert place(node) == (REPORTED.step, REPORTED.phase)
    assert node.errors.refused["files"] == (flaw in ("garbage", "out of range"))


async def test_a_rank_that_waits_for_a_lock_names_the_rank_that_holds_it(node: RecordedNode, folder: Path) -> None:
    path = folder / "cache.lock"
    holds = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, 2); print('has it', flush=True)"
    waits = holds.replace("fcntl.flock", "print('asks', flush=True); fcntl.flock")
    with running(f"{holds}; input()", str(path)) as holder, running(waits, str(path)) as waiter:
        async with watched(node, waiter, holder):
            await until(lambda: published(node).HasField("blocked_on"), "the agent has looked at it")
            assert published(node).blocked_on == common.BlockedOn(
                activity=common.ACTIVITY_FILE_LOCK,
                call="flock",
                path=str(path),
                party=common.PARTY_RANK,
                pid=holder.pid,
                rank=1,
                command=Path(f"/proc/{holder.pid}/comm").read_text().strip(),
            )
            node.ranks[0].apply(session.Report(progress=Progress(step=9, phase=PHASE_DATA)), time.time())
            assert not published(node).HasField("blocked_on")


@pytest.fixture
def looked_at_s(node: RecordedNode, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The node's times of the looks, each of which fails."""
    times_s: list[float] = []

    def fail(*_: object) -> None:
        times_s.append(node.clock_s)
        raise OSError("on purpose")

    monkeypatch.setattr(stall_watch, "_look_at", fail)
    return times_s


async def test_nobody_looks_at_a_rank_that_moves(
    node: RecordedNode, rank: Running, looked_at_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_due = StallWatch._is_due
    asked = 0

    def moves_first(watch: StallWatch, each: Rank) -> bool:
        nonlocal asked
        asked += 1
        each.apply(session.Report(progress=Progress(step=asked, phase=PHASE_DATA)), time.time())
        return is_due(watch, each)

    monkeypatch.setattr(StallWatch, "_is_due", moves_first)
    async with watched(node, rank):
        await until(lambda: asked >= 10, "the watch passes by")
        assert not looked_at_s
        monkeypatch.setattr(StallWatch, "_is_due", is_due)
        await until(lambda: bool(looked_at_s), "it looks at a rank that does not move")


async def test_a_look_that_fails_is_not_repeated_earlier(
    node: RecordedNode, rank: Running, looked_at_s: list[float]
) -> None:
    async with watched(node, rank):
        await until(lambda: len(looked_at_s) >= 3, "the watch continues")
    assert all(later - earlier >= INTERVAL_S for earlier, later in itertools.pairwise(looked_at_s))
