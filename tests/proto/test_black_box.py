import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_proto.black_box import (
    CALLS,
    CHANNELS,
    GROUPS,
    SIZE,
    BlackBoxWriter,
    ChannelMark,
    GroupMark,
    Moment,
    PointToPointCall,
    read,
    read_moment,
)

UNIT = 0x0101010101010101
"""A number with equal bytes, so that half of an old multiple and half of a new one make neither."""

RANK = """
import sys, time
from pathlib import Path
from holdfast_proto.black_box import BlackBoxWriter

box = BlackBoxWriter(Path(sys.argv[1]), run="run", generation=4, rank=1, world_size=2)
group, channel = box.add_group("0"), box.add_channel("0", 0, 1)
{body}
"""

DIES = """
box.moment(12, 3, 99)
box.group(group, 8, 7)
box.call(channel, 5, 98)
box.last_words("ValueError: bad sample")
print("ready", flush=True)
time.sleep(600)
"""

HAMMERS = """
unit = 0x0101010101010101
print("ready", flush=True)
while True:
    for n in range(1, 101):
        box.moment(n * unit, n * unit, n * unit)
        box.group(group, n * unit, n * unit)
        box.call(channel, n * unit, n * unit)
        box.channel_completed(channel, n * unit)
        box.last_words("x" * n)
"""

StartRank = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-00001.box"


def write(path: Path) -> BlackBoxWriter:
    return BlackBoxWriter(path, run="run", generation=4, rank=1, world_size=2)


@pytest.fixture
def start_rank(path: Path) -> Iterator[StartRank]:
    started: list[subprocess.Popen[bytes]] = []

    def start(body: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", RANK.format(body=body), path], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_new_box_is_private_and_says_who_writes_it(path: Path) -> None:
    write(path)
    contents = read(path)
    assert (contents.run, contents.generation, contents.rank, contents.world_size) == ("run", 4, 1, 2)
    assert (contents.step, contents.phase, contents.changed_unix_ns) == (-1, 1, 0)
    assert (contents.last_words, contents.groups, contents.channels, contents.calls) == ("", (), (), ())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == SIZE


def test_what_is_written_is_read(path: Path) -> None:
    box = write(path)
    world, tensor = box.add_group("0"), box.add_group("mesh_tp")
    send = box.add_channel("0", 3, 1)
    assert world is not None and tensor is not None and send is not None
    box.moment(12, 3, 1_700_000_000_000_000_000)
    box.group(world, 9, 8)
    box.group(tensor, 2**63, 2**63 - 1)
    box.call(send, 5, 98)
    box.call(send, 6, 99)
    box.channel_completed(send, 5)
    box.last_words("Traceback …\nValueError: bad sample")
    contents = read(path)
    assert (contents.step, contents.phase, contents.changed_unix_ns) == (12, 3, 1_700_000_000_000_000_000)
    assert contents.groups == (GroupMark("0", 9, 8), GroupMark("mesh_tp", 2**63, 2**63 - 1))
    assert contents.channels == (ChannelMark("0", 3, 1, 6, 5),)
    assert contents.calls == (PointToPointCall(98, send, 5), PointToPointCall(99, send, 6))
    assert contents.last_words == "Traceback …\nValueError: bad sample"


def test_the_next_rank_at_a_path_starts_from_a_blank_box_that_the_one_before_does_not_reach(path: Path) -> None:
    box = write(path)
    box.add_group("0")
    box.last_words("the one before")
    write(path)
    assert (read(path).groups, read(path).last_words) == ((), "")
    box.last_words("still here")
    assert (read(path).groups, read(path).last_words) == ((), "")


def test_of_long_last_words_the_end_is_kept(path: Path) -> None:
    write(path).last_words("x" * 20_000 + "ValueError: bad sample")
    kept = read(path).last_words
    assert kept.endswith("xValueError: bad sample")
    assert len(kept) > 8000


def test_shorter_last_words_replace_longer_ones(path: Path) -> None:
    box = write(path)
    box.last_words("long " * 100)
    box.last_words("short")
    assert read(path).last_words == "short"


def test_a_full_table_of_groups_or_channels_takes_no_more_and_loses_none(path: Path) -> None:
    box = write(path)
    assert [box.add_group(f"group {n}") for n in range(GROUPS + 2)] == [*range(GROUPS), None, None]
    assert [mark.group for mark in read(path).groups] == [f"group {n}" for n in range(GROUPS)]

    assert [box.add_channel("0", peer, 2) for peer in range(CHANNELS + 2)] == [*range(CHANNELS), None, None]
    assert [mark.peer for mark in read(path).channels] == list(range(CHANNELS))


def test_of_many_calls_the_newest_are_kept_oldest_first(path: Path) -> None:
    box = write(path)
    channel = box.add_channel("0", 0, 1)
    assert channel is not None
    for seq in range(1, CALLS + 51):
        box.call(channel, seq, 1000 + seq)
    assert [call.seq for call in read(path).calls] == list(range(51, CALLS + 51))


def test_the_box_of_a_killed_rank_shows_its_last_moment(path: Path, start_rank: StartRank) -> None:
    rank = start_rank(DIES)
    rank.kill()
    rank.wait()
    assert read_moment(path) == Moment(pid=rank.pid, step=12, phase=3, changed_unix_ns=99)
    contents = read(path)
    assert (contents.pid, contents.step, contents.phase) == (rank.pid, 12, 3)
    assert contents.groups == (GroupMark("0", 8, 7),)
    assert contents.channels == (ChannelMark("0", 0, 1, 5, 0),)
    assert contents.last_words == "ValueError: bad sample"


def test_a_reader_sees_no_torn_number_while_a_writer_runs_at_full_speed(path: Path, start_rank: StartRank) -> None:
    start_rank(HAMMERS)
    seen: set[int] = set()
    for _ in range(300):
        contents = read(path)
        numbers = [contents.step, contents.phase, contents.changed_unix_ns]
        numbers += [number for mark in contents.groups for number in (mark.enqueued, mark.completed)]
        numbers += [number for mark in contents.channels for number in (mark.enqueued, mark.completed)]
        numbers += [number for call in contents.calls for number in (call.unix_ns, call.seq)]
        started = [number for number in numbers if number not in (-1, 0, 1)]  # that is the state of a new box
        assert [number for number in started if number % UNIT] == []
        assert set(contents.last_words) <= {"x"}
        seen.add(contents.step)
    assert len(seen) > 1


def test_a_moment_that_changes_while_it_is_read_does_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box, reads = write(path), 0
    pread = os.pread

    def read_while_it_is_written(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads <= changes:
            box.moment(reads, 3, reads)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", read_while_it_is_written)
    changes = 4
    assert read_moment(path).step == 4
    reads, changes = 0, 1000
    with pytest.raises(ValueError, match="change while they are read"):
        read_moment(path)


def test_other_files_have_no_moment(tmp_path: Path) -> None:
    for name, data in {"other": b"HFBBOX\x00\x02" + bytes(SIZE), "short": b"HFBBOX\x00\x01" + bytes(100)}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}: "):
            read_moment(tmp_path / name)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"HFBBOX\x00\x01")
    (tmp_path / "newer").write_bytes(b"HFBBOX\x00\x02" + bytes(SIZE))
    (tmp_path / "other").write_bytes(b"\x00" * 7 + b"\x01" + bytes(SIZE))
    for name in ("short", "newer", "other"):
        with pytest.raises(ValueError, match=f"{name}: not a black box"):
            read(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


@pytest.mark.parametrize("size", [0, 100, SIZE])
def test_a_box_without_an_identity_is_not_there_yet(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))
    for look in (read, read_moment):
        with pytest.raises(FileNotFoundError, match="not complete"):
            look(path)


def test_nobody_finds_half_of_a_box(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Moment | None] = []

    def look(*_: object) -> None:
        found.append(read_moment(path) if path.exists() else None)

    def look_and_reserve(descriptor: int, offset: int, length: int) -> None:
        look()
        os.truncate(descriptor, length)
        look()

    def look_and_answer() -> int:
        look()
        return 4711

    monkeypatch.setattr(os, "posix_fallocate", look_and_reserve)
    monkeypatch.setattr(os, "getpid", look_and_answer)
    first = write(path)
    first.moment(7, 3, 99)
    write(path)
    before = Moment(pid=4711, step=7, phase=3, changed_unix_ns=99)
    assert found == [None] * 3 + [before] * 3
    assert read_moment(path) == Moment(pid=4711, step=-1, phase=1, changed_unix_ns=0)


def test_without_room_for_it_no_box_is_left_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    with pytest.raises(OSError, match="No space left"):
        write(path)
    assert list(path.parent.iterdir()) == []


def test_it_shows_whether_the_rank_meant_to_leave(path: Path) -> None:
    box = write(path)
    assert not read(path).finished
    box.finish()
    assert read(path).finished
