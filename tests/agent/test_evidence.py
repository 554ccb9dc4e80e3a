import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent import evidence, processes
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PendingCall
from tests.agent.nodes import RUN, RecordedNode, begin, make_node
from tests.proto.coroutines import wait_until

GENERATION = 3
INCIDENT = "0001-hung-collective"

RANK = """
import sys, time
from pathlib import Path
from holdfast_proto.black_box import BlackBoxWriter

path, rank = Path(sys.argv[1]), int(sys.argv[2])
path.parent.mkdir(parents=True, exist_ok=True)
box = BlackBoxWriter(path, run="run", generation=3, rank=rank, world_size=2)
box.moment(12, 3, 99)
box.group(box.add_group("0"), 8, 7)


def wait_for_a_peer():
    print("ready", flush=True)
    time.sleep(600)


wait_for_a_peer()
"""

DUMP = {
    "pg_status": {"0": {"last_completed_collective": "7"}, "1": {"last_completed_collective": -1}},
    "entries": [
        {
            "pg_id": pg,
            "process_group": group,
            "collective_seq_id": seq,
            "is_p2p": is_p2p,
            "profiling_name": f"gloo:{name}",
        }
        for pg, group, seq, is_p2p, name in [
            (0, ["0", "default_pg"], 7, False, "all_gather"),
            (0, ["0", "default_pg"], 8, False, "all_reduce"),
            (0, ["0", "default_pg"], 9, True, "send"),
            (1, ["5", "mesh_tp"], 1, False, "broadcast"),
        ]
    ],
}
"""As the hooks write it: call 7 of group 0 is complete, call 8 and the first of group 5 are not."""


@pytest.fixture
def node(folder: Path) -> Iterator[RecordedNode]:
    """A node with two ranks, real processes; the second is stopped."""
    node = make_node(folder)
    started = []
    for rank in range(2):
        box = str(node.options.black_box(GENERATION, rank))
        started.append(subprocess.Popen([sys.executable, "-c", RANK, box, str(rank)], stdout=subprocess.PIPE))
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    wait_until(lambda: processes.process_state(started[0].pid) == "S", "the first rank waits")
    started[1].send_signal(signal.SIGSTOP)
    wait_until(lambda: processes.process_state(started[1].pid) == "T", "the second rank is stopped")
    begin(node, GENERATION, {rank: process.pid for rank, process in enumerate(started)})
    node.pass_time(0.1)
    yield node
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine py-spy takes its time."""
    monkeypatch.setattr(evidence, "STACK_PATIENCE_S", 60.0)


def order(**fields: Any) -> store.GatherEvidence:
    return store.GatherEvidence(incident=INCIDENT, **fields)


def may_look_into_processes() -> bool:
    """Whether the kernel lets py-spy read a process that is not its child."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"


async def test_the_folder_holds_what_a_waiting_and_a_stopped_rank_left(node: RecordedNode) -> None:
    captured = await evidence.gather(node, order(stack_ranks=[0, 1, 7]))
    names = [f"rank-{rank:05}.{what}" for rank in (0, 1) for what in ("black_box.json", "proc.txt", "stack.txt")]
    assert list(captured.files) == names
    assert (captured.incident, list(captured.pending)) == (INCIDENT, [])
    directory = node.options.incident_directory(INCIDENT)
    assert sorted(path.name for path in directory.iterdir()) == names
    for rank in (0, 1):
        box = json.loads((directory / f"rank-{rank:05}.black_box.json").read_text())
        assert (box["run"], box["rank"], box["step"]) == (RUN, rank, 12)
        assert box["groups"] == [{"group": "0", "enqueued": 8, "completed": 7}]
        stack = (directory / f"rank-{rank:05}.stack.txt").read_text()
        assert "wait_for_a_peer" in stack if may_look_into_processes() else stack.startswith("no stack")
    assert "State:\tS (sleeping)" in (directory / "rank-00000.proc.txt").read_text()
    assert "State:\tT (stopped)" in (directory / "rank-00001.proc.txt").read_text()


async def test_dumps_are_asked_of_those_who_can_answer_and_name_the_pending_calls(node: RecordedNode) -> None:
    outboxes: list[asyncio.Queue[session.AgentMessage | None]] = [asyncio.Queue() for _ in range(2)]
    for rank, outbox in enumerate(outboxes):
        node.ranks[rank].outbox = outbox

    async def dump() -> None:
        message = await outboxes[0].get()
        assert message is not None
        directory = Path(message.command.capture_evidence.directory)
        (directory / evidence.dump_name(0)).write_text(json.dumps(DUMP))
        ack = session.CommandAck(id=message.command.id, accepted=True)
        await node.receive(node.ranks[0], session.RankMessage(ack=ack))

    captured, _ = await asyncio.gather(evidence.gather(node, order(flight_recorder=True)), dump())
    assert evidence.dump_name(0) in captured.files
    assert list(captured.pending) == [
        PendingCall(rank=0, group="0", seq=8, op="gloo:all_reduce"),
        PendingCall(rank=0, group="5", seq=1, op="gloo:broadcast"),
    ]
    assert outboxes[1].empty()  # a stopped rank never answers: nobody waits for it


async def test_a_dump_that_never_comes_or_is_cut_short_is_left_out(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "DUMP_PATIENCE_S", 0.05)
    node.ranks[0].outbox = asyncio.Queue()
    directory = node.options.incident_directory(INCIDENT)
    directory.mkdir(parents=True)
    (directory / evidence.dump_name(1)).write_text(json.dumps(DUMP)[:100])
    captured = await evidence.gather(node, order(flight_recorder=True))
    assert evidence.dump_name(0) not in captured.files
    assert list(captured.pending) == []


async def test_of_a_dead_rank_the_black_box_is_kept_and_nothing_is_asked(node: RecordedNode) -> None:
    os.kill(node.ranks[0].pid, signal.SIGKILL)
    node.ranks[0].finish(store.RankExit(signal=signal.SIGKILL), None)
    captured = await evidence.gather(node, order(stack_ranks=[0]))
    assert [name for name in captured.files if name.startswith("rank-00000")] == ["rank-00000.black_box.json"]


async def test_a_rank_without_a_black_box_hides_nothing_of_the_others(node: RecordedNode) -> None:
    node.options.black_box(GENERATION, 0).write_bytes(b"not one")
    captured = await evidence.gather(node, order())
    assert list(captured.files) == ["rank-00000.proc.txt", "rank-00001.black_box.json", "rank-00001.proc.txt"]
