"""Readers of what ranks, torch and other programs leave for an agent."""

import json
import pickle
import struct
from pathlib import Path
from random import Random

from holdfast_agent.evidence import stack_dump, stacks
from holdfast_agent.evidence.flight_dumps import pending_calls
from holdfast_agent.evidence.ras_client import RasError
from holdfast_agent.evidence.ras_report import witness_reports
from holdfast_agent.evidence.recorder_dump import NoDumpError, read_dump, shortened
from holdfast_agent.processes import agent_record
from holdfast_base import processes
from holdfast_cli.analysis.dump_folder import _content
from holdfast_proto import black_box
from holdfast_proto.black_box import BlackBoxWriter, NamedCall
from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord
from holdfast_proto.v1.store_pb2 import RankExit, RunSpec
from tests.fuzz.harness import Source
from tests.fuzz.mutations import either, mutate_bytes, mutate_json
from tests.support.ras_server import REPORT

RECORDINGS = Path(__file__).parents[1] / "cli" / "analyze" / "recordings"
_DUMPS = [RECORDINGS / "torch-matched" / "rank-0.json", RECORDINGS / "two-groups-crossed" / "rank-0.json"]
_PENDING = black_box._PENDING_OFFSET


def _box_samples(folder: Path) -> list[bytes]:
    path = folder / "box"
    box = BlackBoxWriter(path, run="run", generation=4, rank=1, world_size=2)
    box.moment(12, 3, 99)
    box.group(box.add_group("0") or 0, 8, 7)
    box.call(box.add_channel("0", 0, 1) or 0, 5, 98)
    box.last_words("ValueError: bad sample")
    box.pending([NamedCall("0", 8, "nccl:all_reduce", "[[4]]", "['Float']")])
    return [path.read_bytes()]


def _mutate_pending(random: Random, data: bytes) -> bytes:
    """Change the JSON of the pending calls."""
    (length,) = struct.unpack_from("<Q", data, _PENDING)
    text = mutate_json(random, data[_PENDING + 8 : _PENDING + 8 + length])[: black_box._PENDING_BYTES - 8]
    return data[:_PENDING] + struct.pack("<Q", len(text)) + text + data[_PENDING + 8 + len(text) :]


def _read_box(path: Path) -> None:
    contents = black_box.read(path)
    assert all(type(call.seq) is int and isinstance(call.group, str) for call in contents.pending)
    black_box.read_moment(path)


def _box_bomb(path: Path) -> None:
    with path.open("wb") as file:
        file.write(black_box.MAGIC)
        file.truncate(2 << 30)


_STACKS = [
    {
        "pid": 7, "thread_id": 140, "thread_name": "MainThread", "os_thread_id": 7, "active": True, "owns_gil": True,
        "frames": [
            {"name": "step", "filename": "train.py", "module": None, "short_filename": "train.py", "line": 12},
            {"name": "<module>", "filename": "train.py", "module": None, "short_filename": None, "line": 40},
        ],
    },
    {"pid": 7, "thread_id": 141, "thread_name": None, "os_thread_id": None, "active": False, "owns_gil": False,
     "frames": []},
]  # fmt: skip
_SERVED = b"""Thread 0x00007f [pool] (most recent call first):
  File "queue.py", line 171 in get
Thread 0x00007e (most recent call first):
  File "train.py", line ??? in step
"""


def _read_stacks(path: Path) -> None:
    stack_dump.render(stack_dump.parse(path.read_bytes().decode(errors="replace")), 7)


def _read_served(path: Path) -> None:
    stack_dump.render(stacks.parse(path.read_bytes().decode(errors="replace"), 7), 7)


def _dumps(_: Path) -> list[bytes]:
    return [path.read_bytes() for path in _DUMPS]


def _read_recorder(path: Path) -> None:
    read_dump(_content(path)).SerializeToString()


def _read_shortened(path: Path) -> None:
    try:
        shortened(read_dump(path.read_bytes()))
    except NoDumpError:
        raise
    except ValueError:
        pass  # documented: a number that no daemon would take


def _gzip_bomb(path: Path) -> None:
    import gzip

    path.write_bytes(gzip.compress(bytes(8 << 20)) * 200)


def _read_record(path: Path) -> None:
    path.chmod(0o600)
    record = agent_record.load(path)
    for rank in record.ranks if record is not None else ():
        processes.is_alive(rank.pid, rank.start_ticks)


def _records(_: Path) -> list[bytes]:
    ranks = [RankRecord(rank=0, pid=7, start_ticks=9), RankRecord(rank=1, pid=8, exit=RankExit(code=1))]
    spec = RunSpec(run="r", nodes=1, ranks_per_node=2, command=["python", "train.py"])
    record = AgentRecord(run="r", node="a", generation=3, fence=5, last_command="7-0", ranks=ranks, spec=spec)
    return [record.SerializeToString()]


def _read_ras(path: Path) -> None:
    for words in witness_reports(path.read_bytes(), [1524344, 1524345]):
        words.SerializeToString()


def _mutate_ras(random: Random, data: bytes) -> bytes:
    """Change a report, and keep it as wide as NCCL writes it: a denser one is refused unread."""
    text = mutate_json(random, data)
    return text + b" " * 64 * (text.count(b"{") + text.count(b"[")) if random.random() < 0.8 else text


SOURCES = (
    Source(name="record of an agent", read=_read_record, errors=(), samples=_records),
    Source(
        name="report of RAS",
        read=_read_ras,
        errors=(RasError,),
        samples=lambda _: [REPORT],
        mutate=_mutate_ras,
    ),
    Source(
        name="black box",
        read=_read_box,
        errors=(black_box.BlackBoxError, FileNotFoundError),
        samples=_box_samples,
        mutate=_mutate_pending,
        bombs={"file of 2 GiB": _box_bomb},
    ),
    Source(
        name="stack dump",
        read=_read_stacks,
        errors=(stack_dump.StackDumpError,),
        samples=lambda _: [json.dumps(_STACKS).encode()],
        mutate=mutate_json,
    ),
    Source(name="served stacks", read=_read_served, errors=(stack_dump.StackDumpError,), samples=lambda _: [_SERVED]),
    Source(
        name="recorder dump",
        read=_read_recorder,
        errors=(NoDumpError,),
        samples=_dumps,
        mutate=mutate_json,
        bombs={"gzip of 1.6 GiB": _gzip_bomb},
    ),
    Source(
        name="recorder pickle",
        read=_read_shortened,
        errors=(NoDumpError,),
        samples=lambda _: [pickle.dumps(json.loads(path.read_bytes()), 2) for path in _DUMPS],
    ),
    Source(
        name="pending calls of a recorder",
        read=lambda path: pending_calls(path, 3),
        errors=(NoDumpError,),
        samples=_dumps,
        mutate=either(mutate_json, mutate_bytes),
    ),
)
