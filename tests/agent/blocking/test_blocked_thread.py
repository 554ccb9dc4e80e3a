"""What files of /proc show of a thread that is blocked. The files are made up, as no test can freeze a real disk."""

from pathlib import Path
from time import monotonic

import pytest

from holdfast_agent.blocking.blocked_thread import BlockedThread, is_compiler
from holdfast_agent.blocking.relatives import Relatives
from holdfast_proto.v1 import common_pb2 as common

PID = 70
READ_3 = "0 0x3 0x1000 0x1 0x0 0x0 0x0 0x7ffd0 0x7f120"
OPENAT = "257 0xffffff9c 0x10 0x0 0x0 0x0 0x0 0x7ffd0 0x7f120"
FLOCK_3 = "73 0x3 0x2 0x0 0x0 0x0 0x0 0x7ffd0 0x7f120"
WAIT_ANY = "61 0xffffffff 0x0 0x0 0x0 0x0 0x0 0x7ffd0 0x7f120"
LOCKS = "1: FLOCK ADVISORY WRITE 90 00:2b:77 0 EOF\n1: -> FLOCK ADVISORY WRITE 70 00:2b:77 0 EOF\n"


class Proc:
    """A folder like /proc."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def process(self, pid: int, *, state: str = "S", parent: int = 1, name: str = "python", call: str = "") -> None:
        stat = f"{pid} ({name}) {state} {parent} " + " ".join(["0"] * 48)
        self.file(f"{pid}/stat", stat)
        self.file(f"{pid}/comm", name)
        self.file(f"{pid}/task/{pid}/stat", stat)
        self.file(f"{pid}/task/{pid}/syscall", call)
        self.file(f"{pid}/task/{pid}/wchan", "0")
        if parent > 1:
            children = self.path / f"{parent}/task/{parent}/children"
            children.write_text(f"{children.read_text() if children.exists() else ''}{pid} ")

    def file(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def opens(self, pid: int, descriptor: int, link: str, info: str = "flags:\t02\n") -> None:
        (self.path / f"{pid}/fd").mkdir(parents=True, exist_ok=True)
        (self.path / f"{pid}/fd/{descriptor}").symlink_to(link)
        self.file(f"{pid}/fdinfo/{descriptor}", info)

    def look(self, *, within_s: float = 60.0) -> common.BlockedOn | None:
        relatives = Relatives(PID, {PID: 0, 80: 1}, deadline_s=monotonic() + within_s, proc=str(self.path))
        return BlockedThread(PID, relatives, proc=str(self.path), machine="x86_64", trusts_sockets=True).look()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.mark.parametrize(
    "place",
    ["folio_wait_bit_common", "request_wait_answer", "nfs4_do_close", "io_schedule", "0"],
    ids=["page", "fuse", "nfs", "block device", "a kernel that hides places"],
)
def test_a_thread_that_waits_for_a_file_system_names_the_file(proc: Proc, place: str) -> None:
    proc.process(PID, state="D", call=READ_3)
    proc.file(f"{PID}/task/{PID}/wchan", place)
    proc.opens(PID, 3, "/mnt/data/shard-7")
    assert proc.look() == common.BlockedOn(activity=common.ACTIVITY_DISK, call="read", path="/mnt/data/shard-7")


def test_the_path_of_an_open_comes_from_the_threads_memory(proc: Proc) -> None:
    proc.process(PID, state="D", call=OPENAT)
    (proc.path / f"{PID}/mem").write_bytes(b"x" * 16 + b"/mnt/dead/file\n\0")
    found = proc.look()
    assert found == common.BlockedOn(activity=common.ACTIVITY_DISK, call="openat", path="/mnt/dead/file?")


def test_a_fault_in_mapped_memory_is_a_disk_without_a_path(proc: Proc) -> None:
    proc.process(PID, state="D", call="-1 0x7ffd0 0x7f120")
    proc.file(f"{PID}/task/{PID}/wchan", "folio_wait_bit_common")
    assert proc.look() == common.BlockedOn(activity=common.ACTIVITY_DISK)


def test_an_uninterruptible_wait_for_something_else_is_a_system_call(proc: Proc) -> None:
    proc.process(PID, state="D", call="11 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffd0 0x7f120")
    proc.file(f"{PID}/task/{PID}/wchan", "rwsem_down_write_slowpath")
    assert proc.look() == common.BlockedOn(activity=common.ACTIVITY_SYSTEM_CALL)


@pytest.mark.parametrize("state", ["S", "D"])
def test_a_wait_for_a_gpu_may_be_a_collective_and_says_nothing(proc: Proc, state: str) -> None:
    proc.process(PID, state=state, call=READ_3.replace("0 ", "16 ", 1))
    proc.opens(PID, 3, "/dev/nvidia0")
    assert proc.look() is None


@pytest.mark.parametrize("place", ["__refrigerator", "do_freezer_trap"])
def test_a_frozen_control_group_stops_a_rank(proc: Proc, place: str) -> None:
    proc.process(PID, state="D" if place == "__refrigerator" else "S")
    proc.file(f"{PID}/task/{PID}/wchan", place)
    assert proc.look() == common.BlockedOn(activity=common.ACTIVITY_STOPPED, call="freezer")


def test_the_holder_of_a_lock_is_named_with_its_rank_unless_it_is_gone(proc: Proc) -> None:
    proc.process(PID, call=FLOCK_3)
    proc.process(80)
    proc.opens(PID, 3, "/data/cache.lock", "flags:\t02\nino:\t77\n")
    proc.file("locks", LOCKS)
    lock = common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, call="flock", path="/data/cache.lock")
    assert proc.look() == lock, "it is gone"
    proc.process(90, parent=80, name="a\nb")
    lock.MergeFrom(common.BlockedOn(party=common.PARTY_RANK, pid=90, rank=1, command="a?b"))
    assert proc.look() == lock


def test_the_reader_of_a_pipe_waits_for_those_that_can_write_into_it(proc: Proc) -> None:
    proc.process(PID, call=READ_3)
    proc.process(71, parent=PID, name="reads_too")
    proc.process(72, parent=PID, name="writes", state="T")
    proc.opens(PID, 3, "pipe:[5]", "flags:\t00\n")
    proc.opens(71, 3, "pipe:[5]", "flags:\t00\n")
    proc.opens(72, 4, "pipe:[5]", "flags:\t01\n")
    after = common.BlockedOn(activity=common.ACTIVITY_STOPPED)
    assert proc.look() == common.BlockedOn(
        activity=common.ACTIVITY_PROCESS, call="read", party=common.PARTY_CHILD, pid=72, command="writes", next=after
    )


def test_of_several_processes_at_the_other_end_none_is_singled_out(proc: Proc) -> None:
    proc.process(PID, call=READ_3)
    proc.opens(PID, 3, "pipe:[5]", "flags:\t00\n")
    for pid in (71, 72):
        proc.process(pid, parent=PID)
        proc.opens(pid, 4, "pipe:[5]", "flags:\t01\n")
    found = proc.look()
    assert found == common.BlockedOn(activity=common.ACTIVITY_PROCESS, call="read", party=common.PARTY_CHILD)


def test_a_search_that_takes_too_long_names_nobody(proc: Proc) -> None:
    proc.process(PID, call=READ_3)
    proc.opens(PID, 3, "pipe:[5]", "flags:\t00\n")
    found = proc.look(within_s=-1.0)
    assert found == common.BlockedOn(activity=common.ACTIVITY_PIPE, call="read")


def test_the_innermost_compiler_is_named_of_the_processes_for_which_a_rank_waits(proc: Proc) -> None:
    proc.process(PID, call=WAIT_ANY)
    proc.process(71, parent=PID, name="ninja")
    proc.process(72, parent=71, name="sh")
    proc.process(73, parent=72, name="cicc", state="R")
    found = proc.look()
    assert found is not None
    assert (found.activity, found.pid, found.command) == (common.ACTIVITY_COMPILER, 73, "cicc")
    assert found.next.activity == common.ACTIVITY_USER_CODE


@pytest.mark.parametrize("name", ["gcc", "x86_64", "g++-12", "clang-17", "ld.gold", "nvcc", "python3", "ccache_daemon"])
def test_compilers_are_known_by_their_names(name: str) -> None:
    assert is_compiler(name) == (name not in ("x86_64", "python3", "ccache_daemon"))


@pytest.mark.parametrize("state", ["R", "T", "t", "Z"])
def test_a_thread_that_does_not_wait_is_blocked_on_nothing(proc: Proc, state: str) -> None:
    proc.process(PID, state=state, call=READ_3)
    assert proc.look() is None


def test_a_process_that_hides_its_files_is_blocked_on_nothing_that_shows(proc: Proc) -> None:
    proc.process(PID)
    (proc.path / f"{PID}/task/{PID}/syscall").unlink()
    (proc.path / f"{PID}/task/{PID}/wchan").unlink()
    assert proc.look() is None
