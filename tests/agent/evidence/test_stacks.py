"""Stacks of real processes, as py-spy sees them."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_agent.evidence import stacks
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.stack_dump import Thread
from holdfast_agent.processes.rank import Rank
from holdfast_base import processes
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1.store_pb2 import StackSummary
from tests.agent.evidence.test_gathering import may_look_into_processes
from tests.support.coroutines import end, until, wait_until
from tests.support.nodes import make_node

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not may_look_into_processes(), reason="the kernel hides other processes"),
]

WAYS_TO_HANG = {
    "lock": "import threading\nlock = threading.Lock()\nlock.acquire()\nprint(flush=True)\nlock.acquire()",
    "event": "import threading\nprint(flush=True)\nthreading.Event().wait()",
    "user_code": "print(flush=True)\nwhile True: pass",
    "gil_held": "import ctypes\nprint(flush=True)\nctypes.PyDLL(None).sleep(600)",
    "sleep": "import time\nprint(flush=True)\ntime.sleep(600)",
    "pipe": "import os\nown, other = os.pipe()\nprint(flush=True)\nos.read(own, 1)",
    "process": "import subprocess\n"
    "child = subprocess.Popen(['cat'], stdin=-1, stdout=-3)\nprint(flush=True)\nchild.wait()",
}

Start = Callable[[str], Rank]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that starts a rank that hangs in one of the ways."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(way: str) -> Rank:
        process = subprocess.Popen([sys.executable, "-c", WAYS_TO_HANG[way]], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        state = "R" if way == "user_code" else "S"
        sleeps = [""]

        def hangs() -> bool:
            # On a busy machine it may sleep for a moment before the call in which it stays.
            sleeps.append(sleeps_of(process.pid))
            return processes.process_state(process.pid) == state and (state == "R" or sleeps[-1] == sleeps[-2])

        wait_until(hangs, f"the rank hangs: {way}")
        return Rank(4, 1, 0, process.pid, processes.start_ticks(process.pid), device="cpu")

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "NATIVE_PATIENCE_S", 60.0)
    monkeypatch.setattr(stacks, "PLAIN_PATIENCE_S", 60.0)
    monkeypatch.setattr(stacks, "_LOOK_PATIENCE_S", 60.0)


def sleeps_of(pid: int) -> str:
    """Return how often a process has begun to sleep."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))


async def taken(rank: Rank, folder: Path, *, may_pause: bool = True) -> StackSummary:
    summary = await stacks.take(rank, EvidenceFolder(folder, "node0"), may_pause=may_pause)
    assert summary is not None
    return summary


@pytest.mark.parametrize("way", ["lock", "user_code", "gil_held", "sleep", "pipe", "process"])
async def test_the_stack_shows_how_a_rank_hangs(start: Start, tmp_path: Path, way: str) -> None:
    summary = await taken(start(way), tmp_path)
    assert common.Activity.Name(summary.activity) == f"ACTIVITY_{way.upper()}"
    assert summary.frame.startswith("<module> (<string>:")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-00004.stack.json", "rank-00004.stack.txt"]


async def test_a_rank_that_is_held_for_its_stacks_is_not_taken_for_stopped(start: Start, folder: Path) -> None:
    node = make_node(folder)
    rank = node.ranks[4] = start("sleep")
    node.pass_time(0.1)
    seen: set[str] = set()

    async def watch() -> None:
        while True:
            node.pass_time(0.1)
            seen.add(rank.process_state)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await stacks.take(rank, EvidenceFolder(folder / "evidence", "node0"), may_pause=True)
    await end(watching)
    assert seen == {"S"}


async def test_a_rank_that_must_not_be_paused_is_read_as_it_runs(start: Start, tmp_path: Path) -> None:
    summary = await taken(start("gil_held"), tmp_path, may_pause=False)
    assert summary.activity == common.ACTIVITY_GIL_HELD
    assert "sleep" not in (tmp_path / "rank-00004.stack.txt").read_text()


@pytest.mark.parametrize("way", ["pipe", "process"])
async def test_a_rank_is_not_paused_if_its_kernel_names_the_wait(start: Start, tmp_path: Path, way: str) -> None:
    rank = start(way)
    summary = await taken(rank, tmp_path)
    party, pid = summary.blocked_on.party, summary.blocked_on.pid
    if way == "pipe":
        assert (party, pid) == (common.PARTY_ITSELF, rank.pid)
    else:
        assert party == common.PARTY_CHILD
        assert pid not in (0, rank.pid)
    assert "libpython" not in (tmp_path / "rank-00004.stack.txt").read_text()


async def test_the_thread_that_holds_the_gil_is_seen_with_what_it_waits_for(start: Start, tmp_path: Path) -> None:
    summary = await taken(start("gil_held"), tmp_path)
    assert not summary.blocked_on.thread
    assert summary.blocked_on.next == common.BlockedOn(activity=common.ACTIVITY_SLEEP, call="nanosleep")


async def test_a_rank_is_not_paused_if_its_python_frames_name_the_wait(start: Start, tmp_path: Path) -> None:
    summary = await taken(start("event"), tmp_path)
    assert summary.activity == common.ACTIVITY_LOCK
    assert "libpython" not in (tmp_path / "rank-00004.stack.txt").read_text()


async def test_when_native_frames_take_too_long_the_others_are_had(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "NATIVE_PATIENCE_S", 0.0)
    rank = start("sleep")
    await taken(rank, tmp_path)
    assert "rank-00004.stack.txt (--native): py-spy did not answer within 0 s" in (tmp_path / "missing.txt").read_text()
    wait_until(lambda: processes.process_state(rank.pid) == "S", "the rank continues as before")


async def test_a_process_that_is_gone_leaves_a_line_with_the_reason(start: Start, tmp_path: Path) -> None:
    rank = start("lock")
    processes.kill_session(rank.pid, processes.start_ticks(rank.pid))
    wait_until(lambda: processes.process_state(rank.pid) == "Z", "the rank is gone")
    assert await stacks.take(rank, EvidenceFolder(tmp_path, "node0"), may_pause=False) is None
    assert "rank-00004.stack.txt (--nonblocking): py-spy failed" in (tmp_path / "missing.txt").read_text()


async def test_a_look_that_fails_costs_no_stacks(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(stacks, "look_at_rank", fail)
    summary = await taken(start("event"), tmp_path, may_pause=False)
    assert summary.activity == common.ACTIVITY_LOCK
    line = "rank-00004.stack (what it waits for): ValueError('on purpose')"
    assert line in (tmp_path / "missing.txt").read_text()


async def test_a_look_that_fails_late_is_forgotten(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard: list[object] = []
    ended, go = threading.Event(), threading.Event()

    def fail_late(*_: object, **__: object) -> None:
        go.wait()
        ended.set()
        raise ValueError("on purpose")

    monkeypatch.setattr(stacks, "look_at_rank", fail_late)
    monkeypatch.setattr(stacks, "_LOOK_PATIENCE_S", 0.01)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    await taken(start("event"), tmp_path, may_pause=False)
    go.set()
    await until(ended.is_set, "the look fails")
    await asyncio.sleep(0.05)
    gc.collect()
    assert not unheard


async def test_nothing_is_said_of_a_thread_that_is_not_known(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Thread(name="", system_id=None, active=False, owns_gil=True, frames=())
    monkeypatch.setattr(stacks, "sleeping_gil_owner", lambda _: owner)
    given: list[object] = []

    def note(*_: object, gil_owner_blocked: object, **__: object) -> StackSummary:
        given.append(gil_owner_blocked)
        return StackSummary(rank=4)

    monkeypatch.setattr(stacks, "summarize", note)
    await stacks.take(start("pipe"), EvidenceFolder(tmp_path, "node0"), may_pause=False)
    assert given == [None]
