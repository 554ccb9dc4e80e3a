import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast_agent.processes.training_thread import ThreadStatus, look_at
from holdfast_checkpoint import processes

WAITS_S = 20.0
READ = {"x86_64": 0, "aarch64": 63}[platform.machine()]
SLEEP = {"x86_64": 230, "aarch64": 115}[platform.machine()]
"""Number of the system call clock_nanosleep()."""


@contextmanager
def running(code: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", f"print('ready', flush=True)\n{code}"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def wait_until(pid: int, condition: Callable[[ThreadStatus], bool]) -> ThreadStatus:
    deadline_s = time.monotonic() + WAITS_S
    while not condition(status := look_at(pid)):
        assert time.monotonic() < deadline_s, status
    return status


def test_a_thread_that_computes_is_busy_and_one_that_sleeps_is_not() -> None:
    with running("while True: pass") as busy, running("import time; time.sleep(600)") as idle:
        wait_until(idle, lambda status: status.syscall == SLEEP)
        slept_s, began_s = look_at(idle).busy_s, look_at(busy).busy_s
        wait_until(busy, lambda status: status.busy_s > began_s + 0.2)
        assert look_at(idle).busy_s == slept_s


def test_other_threads_of_the_process_do_not_count() -> None:
    code = """
import threading
def compute():
    while True: pass
thread = threading.Thread(target=compute)
thread.start()
thread.join()
"""
    with running(code) as pid:
        waiting = wait_until(pid, lambda status: status.state == "S" and _has_computed(pid))
        assert waiting.busy_s < _process_s(pid)


def _has_computed(pid: int) -> bool:
    return _process_s(pid) > look_at(pid).busy_s + 0.2


def _process_s(pid: int) -> float:
    fields = processes.stat_fields(pid)
    assert fields is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="the kernel does not show system calls")
def test_the_system_call_that_it_waits_in_is_reported() -> None:
    code = "import os; reader, writer = os.pipe(); os.read(reader, 1)"
    with running(code) as pid:
        assert wait_until(pid, lambda status: status.state == "S").syscall == READ
    with running("while True: pass") as pid:
        assert wait_until(pid, lambda status: status.state == "R").syscall == -1


def test_a_stopped_thread_is_seen_and_a_process_that_is_gone_shows_nothing() -> None:
    with running("while True: pass") as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_until(pid, lambda status: status.state == "T")
    assert look_at(pid) == ThreadStatus()
