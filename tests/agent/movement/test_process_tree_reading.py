"""The reading of /proc and of the kernel's answers, garbage included."""

import os
import platform
import random
import socket
import struct
from pathlib import Path

import pytest

from holdfast_agent.movement.process_table import parse_stat, read_table, tree_of
from holdfast_agent.movement.tcp_counters import parse_socket, read_sockets
from holdfast_agent.movement.tree_reader import Machine, TreeReader, UnknownError, parse_call, parse_io, parse_status
from holdfast_agent.movement.tree_sample import IoCounters, TreeSample

IO = "rchar: 100\nwchar: 20\nsyscr: 3\nsyscw: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"


def stat_line(
    pid: int, *, parent: int = 1, session: int = 1, group: int = 1, state: str = "S", name: str = "python"
) -> str:
    times = "120 5 9 4 100 50 2 1"  # minor, of children, major, of children, user, system, of children both
    return f"{pid} ({name}) {state} {parent} {group} {session} 0 -1 4194560 {times} 20 0 3 0 7 1000 200\n"


class FakeProc:
    """A /proc of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, **fields: int | str) -> Path:
        """Add a process of one thread."""
        process = self.folder / str(pid)
        thread = process / "task" / str(pid)
        (process / "fd").mkdir(parents=True)
        thread.mkdir(parents=True)
        (process / "stat").write_text(stat_line(pid, **fields))  # type: ignore[arg-type]
        (process / "io").write_text(IO)
        (process / "ns").mkdir()
        (process / "ns" / "net").symlink_to(os.readlink("/proc/self/ns/net"))  # noqa: PTH115
        (thread / "schedstat").write_text("5000000 100 12\n")
        (thread / "status").write_text("Name:\tpython\nState:\tS\nTracerPid:\t0\n")
        (thread / "syscall").write_text("202 0x1 0x2\n")
        return process

    def machine(self) -> Machine:
        return Machine(read_table(str(self.folder)), {})

    def reader(self, pid: int) -> TreeReader:
        return TreeReader((pid, 7), proc=str(self.folder))

    def sample(self, machine: Machine | None = None) -> TreeSample:
        sample = self.reader(10).read(machine or self.machine())
        assert sample is not None
        return sample


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_line_of_stat_is_read_whatever_the_program_is_called() -> None:
    for name in ("python", "a) S 1 (b", "", "\n)"):
        process = parse_stat(10, stat_line(10, parent=3, name=name, state="D"))
        assert process is not None
        assert (process.pid, process.state, process.parent, process.start_ticks) == (10, "D", 3, 7)
        assert (process.cpu_s, process.major_faults, process.children_ended) == (1.5, 9, 5 + 4 + 2 + 1)


def test_the_counters_are_read() -> None:
    assert parse_io(IO) == IoCounters(100, 20, 3, 2, 4096)
    assert parse_status("Name:\tpt_main: x\nState:\tS\nTracerPid:\t77\nSeccomp:\t0\n") == ("pt_main: x", 77)


def test_a_call_is_identified_by_its_descriptor_if_its_first_argument_is_one() -> None:
    assert parse_call("0 0x5 0x7ffd 0x1 0x0\n", "x86_64") == "0 0x5"
    assert parse_call("63 0x5 0x7ffd 0x1 0x0\n", "aarch64") == "63 0x5"
    assert parse_call("202 0x7f0011 0x80 0x0\n", "x86_64") == "202"
    assert parse_call("230 0x1 0x0\n", "riscv64") == "230"


def test_a_thread_that_runs_or_continues_an_interrupted_call_is_in_no_other_call() -> None:
    for text in ("running\n", "-1 0x7ffd 0x5\n", "219 0x7ffd\n", "", "\n", "garbage"):
        assert parse_call(text, "x86_64") == ""


def test_the_tree_holds_descendants_and_the_rank_s_session_and_nothing_else(proc: FakeProc) -> None:
    proc.add(10, session=10, group=10)
    proc.add(11, parent=10, session=10, group=10)
    proc.add(12, parent=11, session=12, group=12)  # a session of its own
    proc.add(13, parent=1, session=10, group=13)  # its parent has ended
    proc.add(14, parent=13, session=14, group=14)
    proc.add(15, parent=10, session=10, group=10, state="Z")
    proc.add(16, parent=1, session=16, group=16)
    (proc.folder / "17").mkdir()  # this process has just ended
    table = read_table(str(proc.folder))
    assert {pid for pid, _ in tree_of((10, 7), table)} == {10, 11, 12, 13, 14}
    assert {pid for pid, _ in tree_of((10, 7), table, known=[(16, 7), (99, 7)])} == {10, 11, 12, 13, 14, 16}
    assert {pid for pid, _ in tree_of((11, 7), table)} == {11, 12}
    assert tree_of((10, 8), table) == tree_of((15, 7), table) == tree_of((99, 7), table) == {}


def test_parents_in_a_circle_end(proc: FakeProc) -> None:
    proc.add(10, parent=11)
    proc.add(11, parent=10)
    assert len(tree_of((10, 7), read_table(str(proc.folder)))) == 2


def test_a_tree_is_read_from_files(proc: FakeProc) -> None:
    proc.add(10)
    proc.add(11, parent=10)
    sample = proc.sample()
    assert sample.processes.keys() == {(10, 7), (11, 7)}
    assert TreeReader((10, 6), proc=str(proc.folder)).read(proc.machine()) is None, "another process with its pid"
    call = parse_call("202 0x1 0x2", platform.machine())
    assert (sample.workers, sample.traced, sample.call) == (1, False, call)
    assert sample.processes[10, 7].io.disk_bytes == 4096
    assert sample.processes[10, 7].threads[10].ran_s == 0.005


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("io", "rchar: many\n"),
        ("io", ""),
        ("io", None),
        ("task", None),
        ("fd", None),
        ("ns/net", None),
        ("task/10/status", "Name:\tpython\n"),
        ("task/10/status", "\0\0\0"),
        ("task/10/schedstat", None),
    ],
)
def test_what_cannot_be_understood_is_not_known(proc: FakeProc, file: str, text: str | None) -> None:
    path = proc.add(10) / file
    if text is not None:
        path.write_text(text)
    else:
        path.rename(path.with_name("elsewhere"))
    with pytest.raises(UnknownError):
        proc.reader(10).read(proc.machine())


def test_another_network_namespace_is_not_known(proc: FakeProc) -> None:
    link = proc.add(10) / "ns" / "net"
    link.unlink()
    link.symlink_to("net:[1]")
    with pytest.raises(UnknownError, match="another network namespace"):
        proc.reader(10).read(proc.machine())


def test_a_process_that_has_just_ended_is_left_out(proc: FakeProc) -> None:
    proc.add(10)
    gone = proc.add(11, parent=10)
    machine = proc.machine()
    for path in (gone / "task" / "11").iterdir():
        path.unlink()
    for path in (gone / "task" / "11", gone / "task", gone / "fd"):
        path.rmdir()
    (gone / "stat").unlink()
    sample = proc.sample(machine)
    assert sample.processes.keys() == {(10, 7)}


def test_a_stopped_process_is_known_even_if_nothing_of_it_can_be_read(proc: FakeProc) -> None:
    process = proc.add(10, state="T")
    (process / "io").unlink()
    (process / "task" / "10" / "syscall").unlink()
    sample = proc.sample()
    assert (sample.call, sample.workers) == ("", 0)


def test_without_system_calls_a_thread_that_has_run_may_be_anywhere(proc: FakeProc) -> None:
    thread = proc.add(10) / "task" / "10"
    (thread / "syscall").unlink()
    reader = proc.reader(10)
    calls = []
    for turns in (12, 12, 13):
        (thread / "schedstat").write_text(f"5000000 100 {turns}\n")
        sample = reader.read(proc.machine())
        assert sample is not None
        calls.append(sample.call)
    assert calls[0] == calls[1] != calls[2]


def test_a_socket_of_which_a_kernel_shows_less_or_garbage_does_no_harm() -> None:
    noise = random.Random(0)
    for length in range(400):
        parse_socket(noise.randbytes(length))
    body = struct.pack("=BBBB", 2, 1, 0, 0) + struct.pack("!HH", 80, 443) + bytes(48)
    body += struct.pack("=IIII", 5, 6, 0, 99)
    assert len(body) == 72
    plain = parse_socket(body)
    assert plain is not None
    inode, found = plain
    assert (inode, found.local_port, found.remote_port) == (99, 80, 443)
    assert (found.receive_queue, found.send_queue, found.acknowledged, found.received) == (5, 6, 0, 0)
    info = bytes(120) + struct.pack("=QQ", 1000, 2000)
    full = parse_socket(body + struct.pack("=HH", 5, 9) + b"x\0\0\0" + struct.pack("=HH", 4 + len(info), 2) + info)
    assert full is not None
    assert (full[1].acknowledged, full[1].received) == (1000, 2000)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernel_counts_the_bytes_of_each_connection(family: socket.AddressFamily, host: str) -> None:
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no loopback interface for {host}: {error}")
    with server, socket.create_connection(server.getsockname()[:2]) as client, server.accept()[0] as peer:
        client.sendall(bytes(1000))
        peer.recv(1000, socket.MSG_WAITALL)
        client.sendall(bytes(10))
        while len(peer.recv(10, socket.MSG_PEEK)) < 10:
            pass
        found = read_sockets()
        assert (found[_inode(peer)].received, found[_inode(peer)].receive_queue) == (1010, 10)
        assert found[_inode(client)].remote_port == server.getsockname()[1] == found[_inode(server)].local_port


def _inode(each: socket.socket) -> int:
    return os.fstat(each.fileno()).st_ino


def test_the_call_and_the_time_are_those_of_the_thread_that_trains(proc: FakeProc) -> None:
    thread = proc.add(10) / "task" / "11"
    thread.mkdir()
    (thread / "schedstat").write_text("9000000000 100 12\n")
    (thread / "status").write_text("Name:\ttrains\nState:\tS\nTracerPid:\t0\n")
    (thread / "syscall").write_text("7 0x1 0x2\n")
    sample = TreeReader((10, 7), training_thread=11, proc=str(proc.folder)).read(proc.machine())
    assert sample is not None
    assert (sample.call, sample.training_s) == (parse_call("7 0x1 0x2", platform.machine()), 9.0)
