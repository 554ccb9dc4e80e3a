"""Stacks of many ranks as text: each stack once, the odd ones first."""

import stat
from pathlib import Path

from holdfast_agent.evidence.stack_dump import Frame, Thread
from holdfast_cli.analysis.stack_text import main_thread
from holdfast_cli.live.rank_stacks import LiveStack, save, unpacked
from holdfast_cli.live.stack_groups import spans, stack_lines
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store

WAIT, LOCK, LOOP = Frame("wait", "c10d.py", 7), Frame("acquire", "own.py", 3), Frame("train", "train.py", 9)


def stack(rank: int, *frames: Frame, pool: int = 0, problem: str = "") -> LiveStack:
    pid = 100 + rank
    main = Thread(pid, "MainThread", False, False, frames)
    others = [Thread(pid * 10 + number, f"pool_{rank}{number}", number > 0, False, (LOOP,)) for number in range(pool)]
    threads = (main, *others) if frames else ()
    activity = common.ACTIVITY_LOCK if LOCK in frames else common.ACTIVITY_COLLECTIVE
    return LiveStack(rank, "node0", pid, threads, problem, activity)


def test_a_stack_that_several_ranks_have_is_shown_once_and_the_odd_one_first() -> None:
    stacks = [stack(0, WAIT, LOOP, pool=2), stack(1, LOCK, LOOP), stack(2, WAIT, LOOP, pool=2), stack(3, WAIT, LOOP)]
    assert list(stack_lines(stacks)) == [
        "",
        "rank 1, main thread (idle): waits for a lock",
        "    acquire (own.py:3)",
        "    train (train.py:9)",
        "",
        "ranks 0, 2-3, main thread (idle): waits in a call of torch.distributed",
        "    wait (c10d.py:7)",
        "    train (train.py:9)",
        "",
        'ranks 0, 2, thread "pool_00" and 2 more (active in 2 of 4)',
        "    train (train.py:9)",
    ]


def test_ranks_without_stacks_are_named_with_the_reason() -> None:
    problem = "rank-00001.stack.txt (--nonblocking): py-spy failed"
    lines = list(stack_lines([stack(0, WAIT), stack(1, problem=problem), stack(2, problem=problem.replace("1", "2"))]))
    assert lines[0] == "ranks 1-2: no stacks: (--nonblocking): py-spy failed"


def test_long_names_keep_their_place() -> None:
    long = Frame("a" * 300, "libtorch.so", 0)
    [_, _, line] = stack_lines([stack(0, long)])
    assert len(line) == 4 + 140
    assert line.endswith("(libtorch.so)")


def test_spans_join_neighbours() -> None:
    assert spans([3]) == "rank 3"
    assert spans([5, 1, 0, 2, 7, 8]) == "ranks 0-2, 5, 7-8"


def test_saved_texts_are_private_and_analyze_finds_the_main_thread_in_them(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert save([stack(0, LOCK, LOOP), stack(1, problem="gone")], folder) == 1
    [path] = folder.iterdir()
    assert (path.name, stat.S_IMODE(path.stat().st_mode)) == ("rank-00000.stack.txt", 0o600)
    found = main_thread(path.read_text())
    assert found is not None
    assert found.frames[0] == ("acquire", "own.py")


def test_messages_are_unpacked_in_the_order_of_the_ranks() -> None:
    frames = [store.StackFrame(function="f", file="a.py", line=1), store.StackFrame(function="g", file="b.so")]
    thread = store.ThreadFrames(id=9, name="t", active=True, frames=[1, 0])
    one, two = store.RankStacks(rank=1, pid=9, threads=[thread]), store.RankStacks(rank=2, problem="x")
    nodes = [control.NodeStacks(node="b", taken=store.StacksTaken(ranks=[two]))]
    nodes.append(control.NodeStacks(node="a", taken=store.StacksTaken(frames=frames, ranks=[one])))
    first, second = unpacked(nodes)
    assert (first.rank, first.node, second.rank, second.problem) == (1, "a", 2, "x")
    assert [str(frame) for frame in first.threads[0].frames] == ["g (b.so)", "f (a.py:1)"]
    assert first.is_main(first.threads[0])
    assert first.to_json()["threads"][0]["frames"][1] == {"function": "f", "file": "a.py", "line": 1}
