import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_agent.processes import cgroup
from holdfast_agent.processes.kernel_log import KernelLog, message_of, victim_of
from holdfast_agent.processes.memory_kills import MemoryKills
from holdfast_proto.v1.store_pb2 import RankExit

GLOBAL = (
    "3,912,81233451,-;Out of memory: Killed process 4711 (python) total-vm:9123456kB, anon-rss:8000000kB, "
    "file-rss:0kB, shmem-rss:64kB, UID:1000 pgtables:17000kB oom_score_adj:0\n"
)
IN_CGROUP = (
    "3,913,81233460,-;Memory cgroup out of memory: Killed process 4712 (pt_data_worker) total-vm:912kB, "
    "anon-rss:800kB, file-rss:0kB, shmem-rss:64kB, UID:0 pgtables:17kB oom_score_adj:0\n SUBSYSTEM=memory\n"
)
CHOICE = (
    "6,911,81233449,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/job,task_memcg=/job,task=python,pid=4713,uid=0\n"
)
OTHERS = [
    "6,910,81233400,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n",
    "6,914,81233470,-;oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:64kB\n",
    "12,915,81233480,-;somebody: Killed process 99 (sh) by hand\n",
]


@pytest.mark.parametrize(("record", "pid"), [(GLOBAL, 4711), (IN_CGROUP, 4712), (CHOICE, 4713)])
def test_the_kernels_line_names_the_process_that_it_kills(record: str, pid: int) -> None:
    assert victim_of(message_of(record)) == pid


@pytest.mark.parametrize("record", OTHERS)
def test_other_lines_of_the_kernel_name_none(record: str) -> None:
    assert victim_of(message_of(record)) is None


def test_kills_of_the_cgroup_are_counted_as_both_versions_write_them() -> None:
    assert cgroup.oom_kills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n") == 2
    assert cgroup.oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n") == 7
    assert cgroup.oom_kills("oom_kill_disable 0\nunder_oom 0\n") == 0


@pytest.fixture
def log_writer(tmp_path: Path) -> Iterator[int]:
    """A descriptor for records that the kernel would write. They are read from ``tmp_path / "kmsg"``."""
    (tmp_path / "kmsg").write_text(IN_CGROUP)
    descriptor = os.open(tmp_path / "kmsg", os.O_WRONLY | os.O_APPEND)
    yield descriptor
    os.close(descriptor)


def killed() -> RankExit:
    return RankExit(signal=signal.SIGKILL)


def explained(kills: MemoryKills, pid: int, ended: RankExit | None = None) -> RankExit:
    """Return the end of a process, killed by default, with its explanation."""
    ended = ended or killed()
    kills.explain(pid, ended)
    return ended


def test_a_rank_whose_pid_the_kernel_names_ran_out_of_memory(tmp_path: Path, log_writer: int) -> None:
    kills = MemoryKills(KernelLog(tmp_path / "kmsg"), None)
    os.write(log_writer, GLOBAL.encode())
    ended = explained(kills, 4711)
    assert ended.out_of_memory
    assert ended.kernel_line == GLOBAL.partition(";")[2].strip()
    assert not explained(kills, 4710).out_of_memory
    assert not explained(kills, 4711).out_of_memory, "a process of the same pid, later"


def test_what_was_logged_before_the_agent_began_is_about_others(tmp_path: Path, log_writer: int) -> None:
    assert not explained(MemoryKills(KernelLog(tmp_path / "kmsg"), None), 4712).out_of_memory


def test_the_kernel_log_explains_the_end_of_a_process_of_unknown_status(tmp_path: Path, log_writer: int) -> None:
    kills = MemoryKills(KernelLog(tmp_path / "kmsg"), None)
    os.write(log_writer, GLOBAL.encode())
    ended = RankExit()
    kills.explain(4711, ended)
    assert (ended.signal, ended.out_of_memory) == (signal.SIGKILL, True)


def test_without_the_log_every_counted_kill_explains_one_end(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 5\n")
    kills = MemoryKills(None, events)
    by_hand = explained(kills, 1)
    events.write_text("oom_kill 7\n")
    ends = [explained(kills, pid) for pid in range(3)]
    assert [ended.out_of_memory for ended in (by_hand, *ends)] == [False, True, True, False]
    assert ends[0].kernel_line == f"{events}: oom_kill 7"


def test_a_cgroup_that_is_gone_and_made_anew_explains_no_end_by_what_it_had_counted(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 5\n")
    kills = MemoryKills(None, events)
    events.unlink()
    assert not explained(kills, 1).out_of_memory
    events.write_text("oom_kill 5\n")
    assert not explained(kills, 2).out_of_memory


def test_a_rank_that_failed_because_its_worker_was_killed_has_its_own_explanation(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 0\n")
    kills = MemoryKills(None, events)
    events.write_text("oom_kill 1\n")
    assert not explained(kills, 1, RankExit(code=1)).out_of_memory
    assert not explained(kills, 2).out_of_memory


def test_the_log_of_this_machine_can_be_read_or_done_without() -> None:
    assert not explained(MemoryKills.of_this_machine(), os.getpid()).out_of_memory
