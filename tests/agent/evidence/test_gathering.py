import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.evidence import evidence_folder, flight_dumps, gathering, stack_dump, stacks
from holdfast_agent.evidence.gathering import EvidenceGatherer
from holdfast_agent.processes.rank import Rank
from holdfast_base import processes
from holdfast_proto.run_files import flight_recorder_dump
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import ACTIVITY_STOPPED, PendingCall
from tests.support.coroutines import wait_until
from tests.support.nodes import NODE, RUN, RecordedNode, begin, make_node

GENERATION = 3
GLOO = common.Recorder(source=common.RECORDER_SOURCE_GENERIC, backend="gloo", full_dumps=True)
NCCL = common.Recorder(source=common.RECORDER_SOURCE_NCCL, backend="nccl", full_dumps=True)
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
"""A dump as the hooks write it. Call 7 of group 0 is complete; call 8 and the first call of group 5 are not."""


@pytest.fixture
def node(folder: Path) -> Iterator[RecordedNode]:
    """A node with two ranks that are real processes. The second one is stopped."""
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
    """Allow py-spy more time, for a loaded machine."""
    monkeypatch.setattr(stacks, "NATIVE_PATIENCE_S", 60.0)
    monkeypatch.setattr(stacks, "PLAIN_PATIENCE_S", 60.0)
    monkeypatch.setattr(gathering, "FILES_PATIENCE_S", 60.0)


async def gather(node: RecordedNode, command: store.GatherEvidence) -> store.EvidenceCaptured:
    return await EvidenceGatherer(node, node.inventory.primary.path).gather(command)


def command(**fields: Any) -> store.GatherEvidence:
    return store.GatherEvidence(**{"incident": INCIDENT, **fields})


def incident(node: RecordedNode) -> Path:
    return node.options.incident_directory(INCIDENT)


def missing(node: RecordedNode) -> str:
    return (incident(node) / "missing.txt").read_text()


def may_look_into_processes() -> bool:
    """Return whether the kernel lets py-spy read a process that is not its child."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"


async def test_the_folder_holds_what_a_waiting_and_a_stopped_rank_left(node: RecordedNode) -> None:
    captured = await gather(node, command(stack_ranks=[0, 1, 7]))
    directory = incident(node)
    assert (captured.incident, list(captured.pending)) == (INCIDENT, [])
    assert [(place.rank, place.step) for place in captured.places] == [(1, 12)]
    assert sorted(path.name for path in directory.iterdir()) == list(captured.files)
    for rank in (0, 1):
        box = json.loads((directory / f"rank-{rank:05}.black_box.json").read_text())
        assert (box["run"], box["rank"], box["step"]) == (RUN, rank, 12)
        assert box["groups"] == [{"group": "0", "enqueued": 8, "completed": 7}]
    assert "State:\tS (sleeping)" in (directory / "rank-00000.proc.txt").read_text()
    assert "State:\tT (stopped)" in (directory / "rank-00001.proc.txt").read_text()
    assert "still for 0.0 s, last moved: nothing seen" in (directory / "rank-00000.proc.txt").read_text()
    findings = json.loads((directory / f"node-{NODE}.findings.json").read_text())
    assert findings["incident"] == INCIDENT


@pytest.mark.skipif(not may_look_into_processes(), reason="the kernel hides other processes")
async def test_stacks_show_native_frames_of_a_waiting_rank_and_python_frames_of_a_stopped_one(
    node: RecordedNode,
) -> None:
    captured = await gather(node, command(stack_ranks=[0, 1]))
    directory = incident(node)
    assert [stack.rank for stack in captured.stacks] == [0, 1]
    assert all(stack.frame.startswith("wait_for_a_peer (<string>:") for stack in captured.stacks)
    assert captured.stacks[1].activity == ACTIVITY_STOPPED
    waiting, stopped = ((directory / f"rank-{rank:05}.stack.txt").read_text() for rank in (0, 1))
    assert "wait_for_a_peer" in waiting
    assert "nanosleep" in waiting
    assert "wait_for_a_peer" in stopped
    assert "nanosleep" not in stopped


async def test_the_state_of_every_thread_of_a_named_rank_is_kept_and_its_environment_is_not(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gather(node, command(stack_ranks=[0]))
    directory = incident(node)
    pid = node.ranks[0].pid
    assert f"/proc/{pid}/task/{pid}/wchan" in (directory / "rank-00000.proc.txt").read_text()
    assert "/task/" not in (directory / "rank-00001.proc.txt").read_text()
    secret = Path(f"/proc/{pid}/environ").read_bytes().partition(b"\0")[0]
    assert secret
    assert not any(secret in path.read_bytes() for path in directory.iterdir())


async def test_the_node_says_how_much_memory_and_disk_it_has_and_who_uses_it(node: RecordedNode) -> None:
    await gather(node, command())
    text = (incident(node) / f"node-{NODE}.system.txt").read_text()
    for part in ("/proc/loadavg", "MemAvailable", str(node.options.directory), "largest processes", "python"):
        assert part in text


async def test_what_a_suspicion_left_is_taken_into_the_incident(node: RecordedNode) -> None:
    suspected = await gather(node, command(incident="", suspicion="s-2", stack_ranks=[1]))
    assert (suspected.incident, suspected.suspicion) == ("", "s-2")
    captured = await gather(node, command(suspicion="s-2"))
    assert (captured.incident, captured.suspicion) == (INCIDENT, "")
    assert {f"suspicion/{name}" for name in suspected.files} < set(captured.files)
    assert not node.options.suspicion_directory("s-2").exists()


async def test_only_the_newest_two_suspicions_are_kept(node: RecordedNode) -> None:
    for number in range(4):
        await gather(node, command(incident="", suspicion=f"s-{number}"))
    kept = sorted(path.name for path in node.options.suspicion_directory("").iterdir())
    assert kept == ["s-2", "s-3"]


async def test_dumps_are_asked_of_those_who_can_answer_and_name_the_pending_calls(node: RecordedNode) -> None:
    outboxes: list[asyncio.Queue[session.AgentMessage | None]] = [asyncio.Queue() for _ in range(2)]
    for rank, outbox in enumerate(outboxes):
        node.ranks[rank].channel.outbox = outbox

    async def dump() -> None:
        message = await outboxes[0].get()
        assert message is not None
        directory = Path(message.command.capture_evidence.directory)
        (directory / flight_recorder_dump(0)).write_text(json.dumps(DUMP))
        ack = session.CommandAck(id=message.command.id, accepted=True)
        await node.messages.receive(node.ranks[0], session.RankMessage(ack=ack))

    captured, _ = await asyncio.gather(gather(node, command(flight_recorder=True)), dump())
    assert flight_recorder_dump(0) in captured.files
    assert list(captured.pending) == [
        PendingCall(rank=0, group="0", seq=8, op="gloo:all_reduce"),
        PendingCall(rank=0, group="5", seq=1, op="gloo:broadcast"),
    ]
    assert outboxes[1].empty()  # a stopped rank never answers, so nothing waits for it
    assert f"{flight_recorder_dump(1)}: the process is stopped" in missing(node)


async def test_of_ranks_that_are_not_chosen_only_recorders_on_devices_are_read_and_no_file_is_left(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ranks[0].recorders[:] = [GLOO, NCCL]
    dumped: list[tuple[Path, str]] = []

    async def fetch(
        rank: Rank, recorders: Sequence[common.Recorder], folder: evidence_folder.EvidenceFolder
    ) -> dict[str, str]:
        for one in recorders:
            dumped.append((folder.path, flight_dumps.file_of(rank, one)))
            folder.write(flight_dumps.file_of(rank, one), json.dumps({"version": "2.10", "entries": []}))
        return {}

    monkeypatch.setattr(flight_dumps, "fetch", fetch)
    captured = await gather(node, command(flight_recorder=True, file_ranks=[1], stack_ranks=[0]))
    scratch = node.options.recorder_scratch
    assert dumped == [(scratch, flight_recorder_dump(0, "nccl"))]
    assert not scratch.exists()
    assert [one.rank for one in captured.recorders] == [0]
    assert not any(name.startswith("rank-00000") for name in captured.files)
    assert "rank-00001.black_box.json" in captured.files
    assert list(captured.stacks) == []


async def test_a_node_without_a_chosen_rank_writes_nothing(node: RecordedNode) -> None:
    captured = await gather(node, command(flight_recorder=True, file_ranks=[7]))
    assert captured == store.EvidenceCaptured(incident=INCIDENT)
    assert not incident(node).exists()


async def test_of_a_shared_folder_a_node_names_its_own_files_alone(node: RecordedNode) -> None:
    directory = incident(node)
    directory.mkdir(parents=True)
    for other in ("rank-00002.black_box.json", "node-another.findings.json", "incident.json"):
        (directory / other).write_text("{}")
    captured = await gather(node, command())
    assert "rank-00001.black_box.json" in captured.files
    own = {path.name for path in directory.iterdir()}
    assert own - set(captured.files) == {"rank-00002.black_box.json", "node-another.findings.json", "incident.json"}


async def test_junk_in_one_dump_does_not_cost_the_calls_of_the_others(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_dumps, "DUMP_PATIENCE_S", 0.05)
    directory = incident(node)
    directory.mkdir(parents=True)
    entries: Any = DUMP["entries"]
    junk = {"entries": [{"is_p2p": False}, *entries]}
    (directory / flight_recorder_dump(0)).write_text(json.dumps(junk))
    (directory / flight_recorder_dump(1)).write_text("[]")
    captured = await gather(node, command(flight_recorder=True))
    assert {call.rank for call in captured.pending} == {0}
    assert f"{NODE}: {flight_recorder_dump(0)}: 1 of its entries make no sense" in missing(node)
    assert f"{NODE}: {flight_recorder_dump(1)}: it is no dump of a Flight Recorder" in missing(node)
    assert node.errors.refused["recorders"] == 1


async def test_part_of_the_evidence_that_fails_does_not_cost_the_others(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a case without a handler")

    monkeypatch.setattr(stack_dump, "parse", fail)
    monkeypatch.setattr(gathering, "write_node_state", fail)
    captured = await gather(node, command(stack_ranks=[0]))
    assert "rank-00000.black_box.json" in captured.files
    assert list(captured.stacks) == []
    assert "stacks of rank 0: KeyError" in missing(node)
    assert "state of the node: KeyError" in missing(node)
    assert node.errors.unexpected["evidence"] == 1


async def test_each_part_that_is_missing_has_a_reason(node: RecordedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end_early(*_: object, **__: object) -> str:
        raise ProcessLookupError  # it says nothing

    monkeypatch.setattr(stacks, "output_of", end_early)
    over = threading.Event()
    monkeypatch.setattr(gathering, "_read_places", lambda _: over.wait())
    monkeypatch.setattr(gathering, "FILES_PATIENCE_S", 0.01)
    await gather(node, command(stack_ranks=[0]))
    over.set()
    lines = missing(node).splitlines()
    assert f"{NODE}: stacks of rank 0: ProcessLookupError" in lines
    late = f"{NODE}: places of stopped ranks: the black boxes were not read within 0."
    assert any(line.startswith(late) for line in lines)
    assert not any(line.endswith(": ") for line in lines)


async def test_a_dump_that_never_comes_or_is_cut_short_is_left_out(
    node: RecordedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_dumps, "DUMP_PATIENCE_S", 0.05)
    node.ranks[0].channel.outbox = asyncio.Queue()
    directory = incident(node)
    directory.mkdir(parents=True)
    (directory / flight_recorder_dump(1)).write_text(json.dumps(DUMP)[:100])
    captured = await gather(node, command(flight_recorder=True))
    assert flight_recorder_dump(0) not in captured.files
    assert list(captured.pending) == []
    assert f"{NODE}: {flight_recorder_dump(0)}: no answer within 0." in missing(node)
    assert f"{NODE}: {flight_recorder_dump(1)}: it is no complete JSON: Unterminated string" in missing(node)


async def test_of_a_dead_rank_black_box_and_exit_are_kept_and_nothing_is_asked(node: RecordedNode) -> None:
    os.kill(node.ranks[0].pid, signal.SIGKILL)
    node.ranks[0].finish(store.RankExit(signal=signal.SIGKILL), None)
    captured = await gather(node, command(stack_ranks=[0]))
    names = [name for name in captured.files if name.startswith("rank-00000")]
    assert names == ["rank-00000.black_box.json", "rank-00000.exit.json"]
    ended = json.loads((incident(node) / "rank-00000.exit.json").read_text())
    assert ended["signal"] == signal.SIGKILL


async def test_a_rank_without_a_black_box_hides_nothing_of_the_others(node: RecordedNode) -> None:
    node.options.black_box(GENERATION, 0).write_bytes(b"not one")
    captured = await gather(node, command())
    boxes = [name for name in captured.files if name.endswith("black_box.json")]
    assert boxes == ["rank-00001.black_box.json"]
    assert "rank-00000.black_box.json: " in missing(node)
