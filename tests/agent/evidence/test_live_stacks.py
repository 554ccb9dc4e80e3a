"""Stacks for an operator: packed, bounded, and with a reason where there are none."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast_agent.evidence import live_stacks, stacks
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.live_stacks import LiveStacks
from holdfast_agent.evidence.stack_dump import Frame, Thread
from holdfast_agent.processes.rank import Rank
from holdfast_base import processes
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.evidence.test_gathering import may_look_into_processes
from tests.support.nodes import RecordedNode, begin, make_node

WAITS, OWN = Frame("wait", "/lib/python3/threading.py", 331), Frame("step\x1b", "train.py", 9)


def threads(count: int = 2) -> tuple[Thread, ...]:
    return tuple(Thread(number, f"t{number}", False, False, (WAITS, OWN)) for number in range(1, count + 1))


@pytest.fixture
def node(folder: Path) -> RecordedNode:
    node = make_node(folder)
    begin(node, 3, {0: 1, 1: 1, 2: 1})
    node.options.node_directory.mkdir(parents=True, exist_ok=True)
    return node


async def taken(node: RecordedNode, *ranks: int, native: bool = False) -> store.StacksTaken:
    return await LiveStacks(node).take(store.TakeStacks(request="s", ranks=ranks, native=native))


def taking(monkeypatch: pytest.MonkeyPatch, found: Sequence[Thread] | None, why: str = "") -> list[tuple[int, bool]]:
    """Let every rank show some threads; return the ranks that are looked at, and whether with native frames."""
    looks = []

    async def take_all(
        rank: Rank, folder: EvidenceFolder, *, native: bool, patience_s: float
    ) -> Sequence[Thread] | None:
        looks.append((rank.rank, native))
        if why:
            folder.miss("stacks", why)
        return found

    monkeypatch.setattr(stacks, "take_all", take_all)
    return looks


async def test_each_frame_is_packed_once_and_cannot_steer_a_terminal(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(monkeypatch, threads())
    answer = await taken(node, 0, 1, 7)
    assert [(frame.function, frame.line) for frame in answer.frames] == [("wait", 331), ("step?", 9)]
    shown = [[list(thread.frames) for thread in rank.threads] for rank in answer.ranks]
    assert shown == [[[0, 1]] * 2, [[0, 1]] * 2, []]
    assert answer.ranks[2].problem == "it is not alive on this node"
    assert list(node.options.node_directory.iterdir()) == []  # nothing stays on the disk


async def test_only_a_rank_that_does_not_move_is_paused_without_being_asked_to(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = taking(monkeypatch, threads())
    node.ranks[1].stalled_s = live_stacks.STALLED_S
    await taken(node, 0, 1)
    assert looks == [(0, False), (1, True)]
    await taken(node, 0, native=True)
    assert looks[2:] == [(0, True)]


async def test_an_answer_that_grows_too_large_leaves_ranks_out(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(monkeypatch, threads(300))
    monkeypatch.setattr(live_stacks, "MOST_BYTES", 1000)
    answer = await taken(node, 0, 1)
    assert [len(rank.threads) for rank in answer.ranks] == [300, 0]
    assert "name fewer ranks with --rank" in answer.ranks[1].problem


async def test_a_rank_without_stacks_says_why(node: RecordedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, None, "py-spy failed: Permission denied")
    answer = await taken(node, 0)
    assert answer.ranks[0].problem == "stacks: py-spy failed: Permission denied"
    taking(monkeypatch, None)
    answer = await taken(node, 0)
    assert answer.ranks[0].problem == "py-spy showed no threads"


@pytest.mark.system
@pytest.mark.skipif(not may_look_into_processes(), reason="the kernel hides other processes")
async def test_native_frames_of_a_real_process_are_shown_on_request_and_it_continues(node: RecordedNode) -> None:
    program = "import threading\nprint(flush=True)\nthreading.Event().wait()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        rank = node.ranks[0]
        rank.pid, rank.start_ticks = process.pid, processes.start_ticks(process.pid)
        files = []
        for native in (False, True):
            answer = await taken(node, 0, native=native)
            assert answer.ranks[0].problem == ""
            files.append({Path(frame.file).suffix for frame in answer.frames})
        assert files[0] == {".py", ""}
        assert any(suffix not in (".py", "") for suffix in files[1])
        assert process.returncode is None
        assert processes.process_state(process.pid) == "S"
    finally:
        process.kill()
        await process.wait()
