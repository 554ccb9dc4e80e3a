import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_agent.processes.training_thread import ThreadStatus, look_at
from holdfast_base import processes
from tests.support.coroutines import wait_until
from tests.support.trees import running

READ = {"x86_64": 0, "aarch64": 63}[platform.machine()]
READY = "print('ready', flush=True)\n"
SLEEP = {"x86_64": 230, "aarch64": 115}[platform.machine()]
"""Number of the system call clock_nanosleep()."""


def status_once(pid: int, condition: Callable[[ThreadStatus], bool]) -> ThreadStatus:
    """Return the first status of the training thread that meets a condition."""
    return wait_until(lambda: status if condition(status := look_at(pid)) else None, "the status meets the condition")


def test_a_thread_that_computes_is_busy_and_one_that_sleeps_is_not() -> None:
    with running(f"{READY}while True: pass") as busy, running(f"{READY}import time; time.sleep(600)") as idle:
        status_once(idle.pid, lambda status: status.syscall == SLEEP)
        slept_s, began_s = look_at(idle.pid).busy_s, look_at(busy.pid).busy_s
        status_once(busy.pid, lambda status: status.busy_s > began_s + 0.2)
        assert look_at(idle.pid).busy_s == slept_s


def test_other_threads_of_the_process_do_not_count() -> None:
    code = f"""{READY}
import threading
def compute():
    while True: pass
thread = threading.Thread(target=compute)
thread.start()
thread.join()
"""
    with running(code) as process:
        waiting = status_once(process.pid, lambda status: status.state == "S" and _has_computed(process.pid))
        assert waiting.busy_s < _process_s(process.pid)


def _has_computed(pid: int) -> bool:
    return _process_s(pid) > look_at(pid).busy_s + 0.2


def _process_s(pid: int) -> float:
    fields = processes.stat_fields(pid)
    assert fields is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="the kernel does not show system calls")
def test_the_system_call_that_it_waits_in_is_reported() -> None:
    code = f"{READY}import os; reader, writer = os.pipe(); os.read(reader, 1)"
    with running(code) as process:
        assert status_once(process.pid, lambda status: status.state == "S").syscall == READ
    with running(f"{READY}while True: pass") as process:
        assert status_once(process.pid, lambda status: status.state == "R").syscall == -1


def test_a_stopped_thread_is_seen_and_a_process_that_is_gone_shows_nothing() -> None:
    with running(f"{READY}while True: pass") as process:
        os.kill(process.pid, signal.SIGSTOP)
        status_once(process.pid, lambda status: status.state == "T")
    assert look_at(process.pid) == ThreadStatus()


def test_a_rank_may_train_in_another_thread_than_the_main_one() -> None:
    compute = "def compute():\n    print(threading.get_native_id(), flush=True)\n    while True: pass\n"
    code = f"import threading, time\n{compute}threading.Thread(target=compute).start(); time.sleep(600)"
    with running(code) as process:
        tid = int(process.said)
        wait_until(lambda: look_at(process.pid, tid).busy_s > look_at(process.pid).busy_s + 0.5, "the thread computes")
        status_once(process.pid, lambda status: status.state == "S")
        assert look_at(process.pid, tid).state == "R"
