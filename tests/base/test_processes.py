import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast_base import processes
from tests.support.coroutines import wait_until

LEADER = """
import subprocess, sys, time
helper = subprocess.Popen(["sleep", "600"])
print(helper.pid, flush=True)
if sys.argv[1] == "stay":
    time.sleep(600)
"""


@contextmanager
def leader(then: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Yield a process that leads its session, and the pid of a process that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, then], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    helper = int(process.stdout.readline())
    ticks = processes.start_ticks(helper)
    try:
        yield process, helper
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        processes.send_signal(helper, ticks, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    return processes.process_state(pid) in ("", "Z")


def test_session_is_killed_with_what_it_has_started() -> None:
    with leader("stay") as (process, helper):
        processes.kill_session(process.pid, processes.start_ticks(process.pid))
        wait_until(lambda: is_gone(process.pid) and is_gone(helper), "both are gone")


def test_process_of_another_or_an_unknown_start_time_is_never_signalled() -> None:
    with leader("stay") as (process, helper):
        started = processes.start_ticks(process.pid)
        for ticks in (started - 1, started + 1, 0):
            processes.kill_session(process.pid, ticks)
            processes.kill_group(process.pid, ticks)
            assert not processes.send_signal(process.pid, ticks, signal.SIGKILL)
            assert not is_gone(process.pid)
            assert not is_gone(helper)


def test_rest_of_a_group_is_killed_after_its_leader_has_gone() -> None:
    with leader("leave") as (process, helper):
        ticks = processes.start_ticks(process.pid)
        process.wait()
        processes.kill_group(process.pid, ticks + 10**9)  # of a process that started after these members
        assert not is_gone(helper)
        processes.kill_group(process.pid, ticks)
        wait_until(lambda: is_gone(helper), "it is gone")


def test_process_that_leads_no_group_does_not_have_that_of_another_killed() -> None:
    with leader("stay") as (process, helper):
        processes.kill_session(helper, processes.start_ticks(helper))
        wait_until(lambda: is_gone(helper), "it is gone")
        assert not is_gone(process.pid)


def test_only_children_of_the_parent_that_is_named_are_identified() -> None:
    own, own_ticks = os.getpid(), processes.start_ticks(os.getpid())
    with leader("stay") as (process, helper):
        assert processes.start_ticks_of_child(process.pid, own, own_ticks) == processes.start_ticks(process.pid)
        assert processes.start_ticks_of_child(helper, own, own_ticks) == 0
        assert processes.start_ticks_of_child(os.getppid(), own, own_ticks) == 0
        assert processes.start_ticks_of_child(1, own, own_ticks) == 0
        # A warm parent that has died leaves its children to other processes.
        assert processes.start_ticks_of_child(helper, 2**22 - 1, own_ticks) == processes.start_ticks(helper)
        assert processes.start_ticks_of_child(os.getppid(), 2**22 - 1, processes.start_ticks(helper)) == 0


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from holdfast_agent.processes import training_thread
from holdfast_base import processes
own, ticks = os.getpid(), processes.start_ticks(os.getpid())
parent, parent_ticks = os.getppid(), processes.start_ticks(os.getppid())
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
def raises(look, *arguments):
    try:
        look(*arguments)
    except OSError:
        return True
    return False
assert processes.is_alive(own, ticks) and processes.is_alive(parent, parent_ticks)
assert not processes.is_alive(2**22 - 1, 5) and not processes.is_alive(own, 0)
assert raises(processes.process_state, parent) and raises(training_thread.look_at, parent)
processes.kill_session(parent, parent_ticks)  # cannot be distinguished from another: not killed
"""


def test_without_descriptors_no_rank_is_taken_for_dead_and_none_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS], check=False, timeout=60)
    assert done.returncode == 0


PRINTS = """
import os, sys
from holdfast_base.processes import name_process, title_process
before = open("/proc/self/environ", "rb").read()
for title in sys.argv[1].split(","):
    title_process(title)
name_process("a name that is \\udcff too long")
assert open("/proc/self/environ", "rb").read() == before
assert sys.argv[2:] == ["--steps", "5"]
print(open("/proc/self/cmdline").read().rstrip(chr(0)))
print(open("/proc/self/comm").read().strip())
"""


def shown(titles: str) -> tuple[str, str]:
    command = [sys.executable, "-c", PRINTS, titles, "--steps", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    title, name = done.stdout.splitlines()
    return title, name


@pytest.mark.parametrize(
    ("titles", "title"),
    [
        ("holdfast: rank 3 of run", "holdfast: rank 3 of run"),
        ("a longer title than the next,holdfast: rank 3 of run", "holdfast: rank 3 of run"),
        ("x" * 500 + ",holdfast: \udcff of run", "holdfast: ? of run"),
    ],
    ids=["one", "a shorter one later", "no text"],
)
def test_a_title_replaces_the_arguments_and_leaves_environment_and_argv_alone(titles: str, title: str) -> None:
    assert shown(titles) == (title, "a name that is")


def test_a_title_that_is_too_long_is_cut_off_where_the_arguments_end() -> None:
    title, _ = shown("x" * 500 + ",holdfast: " + "y" * 5000)
    assert title.startswith("holdfast: yyy")
    assert set(title.removeprefix("holdfast: ")) == {"y"}


def test_a_kernel_that_hides_the_place_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_ARGUMENTS_END", 1000)
    processes.title_process("title")


def test_environment_of_a_process_is_known_as_soon_as_it_was_started() -> None:
    for _ in range(50):  # without the second reading a third of them or more showed none
        with subprocess.Popen(["sleep", "600"], env={"MARK": "mine"}) as process:
            assert processes.environment(process.pid)[0] == b"MARK=mine"
            process.kill()


def test_environment_may_be_empty() -> None:
    with subprocess.Popen(["/bin/cat"], env={}, stdin=subprocess.PIPE) as process:
        assert processes.environment(process.pid) == [b""]
        process.communicate(timeout=60)
