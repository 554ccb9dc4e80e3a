import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from holdfast_agent.evidence import flight_dumps, stacks, worker_client
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.worker_client import WorkerServerError, ask
from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.rank import Rank
from holdfast_base import processes
from holdfast_proto.run_files import MISSING
from holdfast_proto.v1 import common_pb2 as common
from tests.agent.evidence import worker_rank
from tests.support.coroutines import wait_until

Reply = Callable[[bytes], Awaitable[bytes]]
DUMP = {"version": "2.10", "pg_status": {}, "entries": []}


@pytest.fixture
def socket() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        yield f"{folder}/worker.sock"


def http(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.0 {status}\r\nContent-Length: {size}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(path: str, reply: Reply) -> AsyncIterator[list[str]]:
    """Serve ``reply`` to each request; yield the handlers that were asked for."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[1].decode().removeprefix("/handler/"))
        writer.write(await reply(head))
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield asked


def always(answer: bytes) -> Reply:
    async def reply(head: bytes) -> bytes:
        return answer

    return reply


PONG = always(http(b"pong"))
DUMPED = always(http(json.dumps(DUMP).encode()))


async def refused(path: str, *, pid: int | None = None, patience_s: float = 10.0) -> str:
    """Return why a server's answer is refused."""
    with pytest.raises(WorkerServerError) as caught:
        await ask(path, os.getpid() if pid is None else pid, "ping", patience_s)
    return str(caught.value)


async def test_the_answer_of_a_handler_is_returned(socket: str) -> None:
    async with serving(socket, PONG) as asked:
        assert await ask(socket, os.getpid(), "ping?a=b", 10.0) == b"pong"
    assert asked == ["ping?a=b"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (http(b"Handler x\nnot found", "404 Not Found"), "answered ping with 404: Handler x not found"),
        (b"hello\r\n\r\n", "gave no HTTP answer"),
        (http(b"half", length=8), "sent 4 of 8 bytes"),
        (http(b"", length=0).replace(b": 0", b": many"), "cannot be asked"),
        (b"", "cannot be asked"),
        (b"x" * 100_000, "cannot be asked"),
    ],
)
async def test_an_answer_that_is_none_is_refused_with_the_reason(answer: bytes, reason: str, socket: str) -> None:
    async with serving(socket, always(answer)):
        assert reason in await refused(socket)


async def test_an_answer_that_is_too_large_is_refused(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "LARGEST_ANSWER_BYTES", 2**20)
    async with serving(socket, always(http(b"x" * (2**20 + 1)))):
        assert "larger than 1 MiB" in await refused(socket)


async def test_a_server_that_does_not_answer_is_left_after_its_time(socket: str) -> None:
    never = asyncio.Event()

    async def reply(head: bytes) -> bytes:
        await never.wait()
        return b""

    async with serving(socket, reply):
        assert "did not answer within 0.2 s" in await refused(socket, patience_s=0.2)
        never.set()


async def test_a_server_of_another_process_is_not_asked(socket: str) -> None:
    async with serving(socket, PONG) as asked:
        assert "not by the rank" in await refused(socket, pid=os.getpid() + 1)
    assert asked == []


def rank_with(socket: str, *recorders: common.Recorder) -> Rank:
    rank = Rank(4, 1, 0, os.getpid(), 1)
    rank.worker_socket, rank.recorders = socket, [*recorders]
    return rank


GLOO = common.Recorder(source=common.RECORDER_SOURCE_GENERIC, backend="gloo", full_dumps=True)
NCCL = common.Recorder(source=common.RECORDER_SOURCE_NCCL, backend="nccl", full_dumps=True)
OLD_NCCL = common.Recorder(source=common.RECORDER_SOURCE_NCCL, backend="nccl")
NCCL2 = common.Recorder(source=common.RECORDER_SOURCE_BACKEND, backend="nccl2", full_dumps=True)
NONE = common.Recorder(source=common.RECORDER_SOURCE_NONE, backend="ucc")


async def test_each_recorder_of_a_rank_is_dumped_into_a_file_of_its_own(socket: str, tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path, "a")
    async with serving(socket, DUMPED) as asked:
        calls = await flight_dumps.collect([rank_with(socket, GLOO, NCCL, NCCL2)], folder, Errors())
    assert calls.pending == []
    assert [one.rank for one in calls.recorders] == [4, 4]
    assert sorted(asked) == [
        "dump_nccl_trace_json?includecollectives=true",
        "fr_trace_json",
        "fr_trace_json?backend=nccl2",
    ]
    assert folder.files([4]) == [
        "rank-00004.flight_recorder.json",
        "rank-00004.flight_recorder_nccl.json",
        "rank-00004.flight_recorder_nccl2.json",
    ]


@pytest.mark.parametrize(
    ("recorder", "asked_for", "why"),
    [
        (OLD_NCCL, ["dump_nccl_trace_json?includecollectives=false"], "torch before 2.14"),
        (NONE, [], "torch has no recorder for backend ucc"),
    ],
)
async def test_what_an_old_torch_and_a_backend_cannot_show_is_not_asked_for_and_the_evidence_says_so(
    recorder: common.Recorder, asked_for: list[str], why: str, socket: str, tmp_path: Path
) -> None:
    async with serving(socket, DUMPED) as asked:
        await flight_dumps.collect([rank_with(socket, recorder)], EvidenceFolder(tmp_path, "a"), Errors())
    assert asked == asked_for
    assert why in (tmp_path / MISSING).read_text()


async def test_an_answer_that_is_no_dump_is_not_kept(socket: str, tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path, "a")
    async with serving(socket, always(http(b"[]"))):
        await flight_dumps.collect([rank_with(socket, NCCL)], folder, Errors())
    assert "nccl.json: it is no dump of a Flight Recorder" in (tmp_path / MISSING).read_text()
    assert folder.files([4]) == [MISSING]


@pytest.mark.parametrize(("recorders", "asked_for"), [([], ["fr_trace_json"]), ([NONE], [])])
async def test_a_rank_that_has_named_no_recorder_yet_is_asked_for_the_generic_one(
    recorders: list[common.Recorder], asked_for: list[str], socket: str, tmp_path: Path
) -> None:
    async with serving(socket, DUMPED) as asked:
        rank = rank_with(socket, *recorders)
        missing = await flight_dumps.fetch(rank, flight_dumps.recorders_of(rank), EvidenceFolder(tmp_path, "a"))
    assert (asked, missing) == (asked_for, {})


async def test_a_rank_without_a_server_is_not_asked_and_that_is_no_reason(tmp_path: Path) -> None:
    missing = await flight_dumps.fetch(rank_with(""), [GLOO, NCCL], EvidenceFolder(tmp_path, "a"))
    assert missing == {"rank-00004.flight_recorder.json": "", "rank-00004.flight_recorder_nccl.json": ""}


async def test_both_ways_to_a_dump_say_why_they_failed(socket: str, tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path, "a")
    await flight_dumps.collect([rank_with(socket, NCCL)], folder, Errors())
    (line,) = (tmp_path / MISSING).read_text().splitlines()
    assert "rank-00004.flight_recorder_nccl.json: torch's worker server cannot be asked" in line
    assert line.endswith("the rank has no session with its agent")


@contextmanager
def hanging_rank(socket: str, way: str) -> Iterator[Rank]:
    """Run a real rank with torch's worker server until the end of the block."""
    command = [sys.executable, str(worker_rank.__file__), socket, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready True\n"
            wait_until(lambda: processes.process_state(process.pid) == "S", "the rank hangs")
            rank = Rank(0, 1, 0, process.pid, processes.start_ticks(process.pid), device="cpu")
            rank.worker_socket, rank.recorders = socket, [GLOO]
            yield rank
        finally:
            process.kill()


@pytest.mark.system
async def test_a_rank_that_holds_its_interpreter_shows_its_recorder(
    socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_dumps, "SERVER_PATIENCE_S", 60.0)
    with hanging_rank(socket, "gil_held") as rank:
        await flight_dumps.collect([rank], EvidenceFolder(tmp_path, "a"), Errors())
        with pytest.raises(WorkerServerError, match="did not answer"):
            await ask(socket, rank.pid, "dump_traceback", 1.0)  # this one needs the interpreter
    (entry,) = json.loads((tmp_path / "rank-00000.flight_recorder.json").read_text())["entries"]
    assert entry["profiling_name"] == "gloo:all_reduce"


@pytest.mark.system
async def test_without_py_spy_the_worker_server_shows_the_stacks(
    socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "SERVED_PATIENCE_S", 60.0)

    async def no_spy(*_: object) -> None:
        return None

    monkeypatch.setattr(stacks, "_dump", no_spy)
    folder = EvidenceFolder(tmp_path, "a")
    with hanging_rank(socket, "lock") as rank:
        assert await stacks.take(rank, folder, may_pause=False) is None  # a suspect is not asked
        summary = await stacks.take(rank, folder, may_pause=True)
    assert summary is not None
    assert summary.frame.startswith("wait_for_a_lock (worker_rank.py:")
    assert summary.activity == common.ACTIVITY_LOCK
    assert "wait_for_a_lock" in (tmp_path / "rank-00000.stack.txt").read_text()
