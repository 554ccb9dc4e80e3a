"""Which files of a folder are dumps, of which rank, and which are stacks."""

import gzip
import json
import os
import pickle
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast_agent.evidence.recorder_dump import HIGHEST_RANK
from holdfast_cli.analysis.dump_folder import read_folder
from holdfast_cli.errors import CommandError
from tests.support.recorder_documents import Document

WRITTEN = Document({"0": (0, 1, 2, 3)}).call().pending().document()
JSON = json.dumps(WRITTEN).encode()
STACK = b'Thread 7 (idle): "MainThread"\n    step (train.py:9)\n'
PICKLE = pickle.dumps(WRITTEN, protocol=2)


def write(folder: Path, *names: str, data: bytes = JSON) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", ["nccl_trace_rank_3", "rank-3.json", "dump3.pkl", "Rank 3.trace", "deep/er/rank_3"])
@pytest.mark.parametrize("data", [JSON, PICKLE, gzip.compress(PICKLE)])
def test_the_rank_is_in_the_name(tmp_path: Path, name: str, data: bytes) -> None:
    found = read_folder(write(tmp_path, name, data=data))
    assert (list(found.dumps), found.refused) == ([3], [])
    assert [call.seq for call in found.dumps[3].calls] == [1, 2]


def test_other_files_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, "rank-0.json")
    write(tmp_path, "settings-1.json", data=b'{"lr": 0.1}')
    write(tmp_path, "weights-2.bin", data=bytes(range(256)))
    write(tmp_path, "rank-3.json", data=JSON[:-9])
    write(tmp_path, "rank-1.json.gz", data=gzip.compress(JSON)[:-20])
    found = read_folder(tmp_path)
    assert list(found.dumps) == [0]
    names = [line.partition(": ")[0] for line in found.refused]
    assert names == ["rank-1.json.gz", "rank-3.json", "settings-1.json", "weights-2.bin"]
    assert "cannot be unpacked" in found.refused[0] and "no complete JSON" in found.refused[1]
    assert found.refused[3] == "weights-2.bin: it is neither JSON nor a pickle"


def test_texts_hidden_files_and_settings_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, "rank-0.json")
    write(tmp_path, "notes-1.txt", ".rank-1.json", "train.py", "rank-1.log", "README.md", "run.toml", data=b"no dump")
    assert read_folder(tmp_path).refused == []


def test_the_other_files_of_an_incident_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, "rank-00000.flight_recorder.json", "suspicion/rank-00000.flight_recorder.json")
    write(tmp_path, "rank-00000.black_box.json", "rank-00001.exit.json", "incident.json", "core.json", data=b"{}")
    write(tmp_path, "node-n0.findings.json", "observations.binpb", "rank-00000.stack.json", data=b"{}")
    write(tmp_path, "rank-00000.stack.txt", data=STACK + b"newer")
    write(tmp_path, "suspicion/rank-00000.stack.txt", data=STACK)
    found = read_folder(tmp_path)
    assert list(found.dumps) == [0] and found.stacks == {0: STACK.decode() + "newer"}
    assert found.refused == [
        "suspicion/rank-00000.stack.txt: another file has the stacks of rank 0",
        "suspicion/rank-00000.flight_recorder.json: rank-00000.flight_recorder.json has the dump of rank 0",
    ]


def test_a_folder_of_earlier_dumps_inside_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "rank-0.json", "before/rank-0.json", "before/rank-1.json")
    assert list(read_folder(tmp_path).dumps) == [0, 1]
    assert list(read_folder(tmp_path, without=tmp_path / "before").dumps) == [0]


@pytest.mark.parametrize("name", ["rank-1.stack.txt", "stacks/rank-1.txt", "py-spy/1.txt", "traceback_rank_1"])
def test_stacks_have_the_rank_in_their_name(tmp_path: Path, name: str) -> None:
    write(write(tmp_path, "rank-0.json"), name, data=STACK)
    found = read_folder(tmp_path)
    assert (found.stacks, found.refused) == ({1: STACK.decode()}, [])


NO_STACK = "it shows no stack of a main thread, as the texts of py-spy dump and faulthandler do"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("rank-1.txt", b"", NO_STACK),
        ("rank-1.txt", b"\x00\xff" * 1000, NO_STACK),
        ("rank-1.txt", b"Process 7: python train.py", NO_STACK),
        ("rank-1.json", b"[]", NO_STACK),
        ("rank-1", JSON, NO_STACK),
        ("notes.txt", STACK, "its name has no rank in it, as in rank-3.json"),
        (f"rank-{HIGHEST_RANK + 1}.txt", STACK, f"{HIGHEST_RANK + 1} is too large for a rank"),
    ],
)
def test_stacks_that_show_nothing_are_left_out_and_named(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    write(write(tmp_path, "rank-0.json"), f"stacks/{name}", data=data)
    found = read_folder(tmp_path)
    assert (found.stacks, found.refused) == ({}, [f"stacks/{name}: {reason}"])


def test_stacks_that_are_too_large_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, "rank-0.json", "rank-1.stack.txt")
    os.truncate(tmp_path / "rank-1.stack.txt", (16 << 20) + 1)
    found = read_folder(tmp_path)
    assert (found.stacks, len(found.refused)) == ({}, 1) and "it is larger than 16 MiB" in found.refused[0]


def test_what_is_no_file_and_has_the_name_of_a_dump_is_not_opened_and_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "rank-0.json")
    os.mkfifo(folder / "trace_rank_1")
    for link, target in (("trace_rank_2", "gone"), ("trace_rank_4", "/dev/zero"), ("other", "node")):
        (folder / link).symlink_to(target)
    for empty in ("trace_rank_3", "node"):
        (folder / empty).mkdir()
    (folder / "node" / "trace_rank_6").symlink_to(folder / "trace_rank_1")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "trace_rank_5"))
        found = read_folder(tmp_path)
    assert list(found.dumps) == [0]
    assert found.refused == [
        "other: it is a link to a folder, and those are not followed",
        "trace_rank_1: it is a pipe, and no file",
        "trace_rank_2: it is a link to a file that does not exist",
        "trace_rank_3: it is an empty folder",
        "trace_rank_4: it is a device, and no file",
        "trace_rank_5: it is a socket, and no file",
        "node/trace_rank_6: it is a pipe, and no file",
    ]


def test_the_pipes_of_torch_are_not_opened_and_no_dumps_that_are_missing(tmp_path: Path) -> None:
    os.mkfifo(write(tmp_path, "rank-0.json") / "rank-1.pipe")
    (tmp_path / "rank-2").mkdir()
    write(tmp_path, "rank-2/rank_2")
    found = read_folder(tmp_path)
    assert (list(found.dumps), found.refused) == ([0, 2], [])


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "rank-0.json", "node/rank-1.json")
    real = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "node":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "node: it is a folder that may not be read" in read_folder(tmp_path).refused


def test_each_file_that_is_read_is_noted(tmp_path: Path) -> None:
    noted: list[tuple[int, int]] = []
    write(tmp_path, "rank-0.json", "rank-1.json", "rank-1.log")
    read_folder(tmp_path, note=lambda done, total: noted.append((done, total)))
    assert noted == [(1, 2), (2, 2)]


@pytest.mark.parametrize("number", [HIGHEST_RANK + 1, 20261123])
def test_a_number_that_is_too_large_is_no_rank(tmp_path: Path, number: int) -> None:
    bare = json.dumps(Document({"0": ()}).call().document()).encode()  # it does not say how many ranks there are
    found = read_folder(write(tmp_path, "rank-0.json", f"rank-{HIGHEST_RANK}.json", f"rank-{number}.json", data=bare))
    assert list(found.dumps) == [0, HIGHEST_RANK]
    assert found.refused == [f"rank-{number}.json: {number} is too large for a rank"]


def test_the_times_of_the_files_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "rank-0.json", "notes-1.txt", "rank-1.stack.txt")
    os.utime(tmp_path / "rank-0.json", (5, 7))
    assert read_folder(tmp_path).written_ns == [7_000_000_000]


def test_a_folder_with_very_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_cli.analysis.dump_folder._MOST_FILES", 2)
    assert len(read_folder(write(tmp_path, "rank-0.json", "rank-1.json")).dumps) == 2
    with pytest.raises(CommandError, match="holds more than 2 files: name the folder of the dumps"):
        read_folder(write(tmp_path, "rank-2.json"))


def test_a_folder_without_dumps_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="holds no dump of a Flight Recorder: torch writes them where"):
        read_folder(tmp_path)
    write(tmp_path, "dump.json")
    with pytest.raises(CommandError, match=r"holds no dump of a Flight Recorder \(dump\.json: its name has no rank"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "file")
    with pytest.raises(CommandError, match=f"{name} is no folder: name the one that holds one dump for each rank"):
        read_folder(tmp_path / name)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _mode: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path, "rank-0.json")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CommandError, match=r"cannot read .*rank-0\.json: Permission denied"):
        read_folder(tmp_path)


def test_a_file_that_is_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_cli.analysis.dump_folder.LARGEST_DUMP_BYTES", len(JSON))
    write(write(tmp_path, "rank-0.json"), "rank-1.json", data=JSON + b" ")
    write(tmp_path, "rank-2.json.gz", data=gzip.compress(JSON + b" " * 50_000))
    found = read_folder(tmp_path)
    assert list(found.dumps) == [0] and len(found.refused) == 2


def test_a_small_file_that_becomes_a_large_one_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_cli.analysis.dump_folder.LARGEST_DUMP_BYTES", 16 << 20)
    write(write(tmp_path, "rank-0.json"), "rank-1.json.gz", data=gzip.compress(bytes(32 << 20), 1))
    tracemalloc.start()
    try:
        found = read_folder(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert found.refused == ["rank-1.json.gz: unpacked, it is larger than 16 MiB"]
