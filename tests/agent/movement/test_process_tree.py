"""Movement in trees of real processes."""

import os
import platform
import signal
from pathlib import Path

import pytest

from holdfast_agent.movement.tree_movement import CPU, DISK, PROCESSES, WAKES, WRITES
from holdfast_agent.movement.tree_reader import Machine, TreeReader
from holdfast_base import processes
from holdfast_proto.v1.store_pb2 import LostWorker
from tests.support.trees import Tree, running

pytestmark = pytest.mark.system

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
COMPUTES = "print('ready', flush=True)\nwhile True: pass"

MOVING = {
    "a child that computes": f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {COMPUTES!r}])
child.wait()
""",
    "a thread that computes a twentieth of the time": """
import threading, time
def compute():
    while True:
        until_s = time.thread_time() + 0.0125
        while time.thread_time() < until_s: pass
        time.sleep(19 * 0.0125)
threading.Thread(target=compute).start()
print('ready', flush=True)
threading.Event().wait()
""",
    "threads that live shorter than the time between looks": """
import threading, time
def compute():
    until_s = time.thread_time() + 0.08
    while time.thread_time() < until_s: pass
print('ready', flush=True)
while True:
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    time.sleep(0.02)
""",
}
STILL = {
    "threads that poll": """
import threading, time
def poll(interval_s):
    while True: time.sleep(interval_s)
for interval_s in (0.05, 0.1, 0.1, 1.0, 5.0):
    threading.Thread(target=poll, args=(interval_s,)).start()
print('ready', flush=True)
threading.Event().wait()
""",
    "many threads": """
import threading
for _ in range(300): threading.Thread(target=threading.Event().wait).start()
print('ready', flush=True)
threading.Event().wait()
""",
}


@pytest.mark.parametrize("what", MOVING)
def test_what_computes_moves(what: str) -> None:
    with running(MOVING[what]) as process:
        Tree(process.pid).wait_for_moves(CPU)


@pytest.mark.parametrize("what", STILL)
def test_what_waits_or_polls_is_still(what: str) -> None:
    with running(STILL[what]) as process:
        Tree(process.pid).wait_for_stillness()


def test_a_training_thread_that_tries_again_between_sleeps_moves_and_one_that_polls_a_lock_is_still() -> None:
    retries = """
import socket, time
print('ready', flush=True)
while True:
    for _ in range(5):  # as a client does that resolves, connects, fails and logs
        try: socket.create_connection(("127.0.0.1", 1))
        except OSError as error: str(error)
    time.sleep(0.5)
"""
    with running(retries) as process:
        Tree(process.pid).wait_for_moves(CPU, looks=5)
    polls = """
import threading
print('ready', flush=True)
lock = threading.Lock()
lock.acquire()
while not lock.acquire(timeout=1.0): pass
"""
    with running(polls) as process:
        Tree(process.pid).wait_for_stillness(still_s=3.0)


def pausing(how: str) -> str:
    """Return a script of which something sleeps again and again: how it does so."""
    return f"""
import os, subprocess, sys, threading, time
def pause(say=""):
    while True:
        time.sleep(0.2)
        if say: print(say, flush=True)
print('ready', flush=True)
{how}
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("how", "sign"),
    [
        ("pause()", WAKES),
        ("threading.Thread(target=pause, args=('503 Slow Down, attempt 7',)).start()", WRITES),
        ("subprocess.run([sys.executable, '-c', 'import time\\nwhile True: time.sleep(0.2)'])", WAKES),
    ],
)
def test_a_script_that_waits_with_pauses_shows_a_sign_of_life(how: str, sign: str) -> None:
    with running(pausing(how)) as process:
        Tree(process.pid).wait_for_sign(sign)


@pytest.mark.parametrize("how", ["threading.Thread(target=pause).start()", "os.fork() or pause()"])
def test_threads_and_forked_workers_that_poll_are_no_sign_of_life(how: str) -> None:
    with running(pausing(how)) as process:
        Tree(process.pid).wait_for_stillness(signs=False)


HOOKS_THREAD = """
import threading
from pathlib import Path
from holdfast_base.threads import show_name
def report():
    {show}
    while True:
        for _ in range(400): Path("/proc/self/status").read_text()
        threading.Event().wait(0.05)
print('ready', flush=True)
threading.Thread(target=report, name="holdfast-reporter").start()
threading.Event().wait()
"""


def test_what_the_hooks_own_threads_do_is_no_movement() -> None:
    with running(HOOKS_THREAD.format(show="show_name()")) as process:
        Tree(process.pid).wait_for_stillness()
    with running(HOOKS_THREAD.format(show="pass")) as process:
        Tree(process.pid).wait_for_moves(CPU)


def test_a_process_that_reads_a_file_slowly_moves(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    code = """
import sys, time
file = open(sys.argv[1], "rb", buffering=0)
print('ready', flush=True)
while True:
    file.read(1024) or file.seek(0)
    time.sleep(0.25)
"""
    with running(code, str(tmp_path / "file")) as process:
        Tree(process.pid).wait_for_moves(DISK)


def test_children_that_begin_and_end_move() -> None:
    code = """
import subprocess, time
print('ready', flush=True)
while True:
    subprocess.run(["true"])
    time.sleep(0.3)
"""
    with running(code) as process:
        Tree(process.pid).wait_for_moves(PROCESSES, CPU, DISK)


def test_a_daemon_that_was_once_in_the_tree_stays_in_it() -> None:
    code = """
import os, sys, time
middle = os.fork()
if middle == 0:
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        os.setsid()
        os.kill(os.getppid(), 9)
        time.sleep(600)
    time.sleep(600)
os.wait()
time.sleep(600)
"""
    with running(code) as process:
        tree = Tree(process.pid)
        before = tree.wait_until(lambda sample: len(sample.processes) == 3)
        process.say("go")
        leads = lambda each: each.stat.session == each.stat.pid != process.pid  # noqa: E731
        # A sample may have read the daemon before it became one, and its parent after its death.
        after = tree.wait_until(
            lambda sample: len(sample.processes) == 2 and any(map(leads, sample.processes.values()))
        )
        (daemon,) = filter(leads, after.processes.values())
        try:
            assert daemon.stat.identity in before.processes
            assert daemon.stat.parent != process.pid
        finally:
            os.kill(daemon.stat.pid, signal.SIGKILL)


def test_a_training_thread_that_waits_on_another_descriptor_has_moved() -> None:
    code = """
import os, sys
first, second = int(sys.argv[1]), int(sys.argv[2])
print('ready', flush=True)
os.read(first, 1)
os.read(second, 1)
"""
    pipes = os.pipe(), os.pipe()
    (first, wake), (second, _) = pipes
    with running(code, str(first), str(second), pass_fds=(first, second)) as process:
        tree = Tree(process.pid)
        tree.wait_until(lambda sample: sample.call == f"{_READ} {first:#x}")
        tree.wait_for_stillness(1.0)
        assert tree.move() == ""
        os.write(wake, b"\0")
        assert tree.move() == CPU
        assert tree.look().call == f"{_READ} {second:#x}"
    for descriptor in (*pipes[0], *pipes[1]):
        os.close(descriptor)


_READ = {"x86_64": 0, "aarch64": 63}[platform.machine()]


def test_a_tree_that_is_stopped_is_still_and_has_moved_when_it_continues() -> None:
    with running(COMPUTES) as process:
        tree = Tree(process.pid)
        tree.wait_for_moves(CPU)
        os.killpg(process.pid, signal.SIGSTOP)
        tree.wait_for_stillness()
        os.killpg(process.pid, signal.SIGCONT)
        assert tree.move() == CPU


def test_workers_are_the_children_that_live() -> None:
    code = """
import multiprocessing.resource_tracker, subprocess, time
multiprocessing.resource_tracker.ensure_running()
children = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""
    with running(code) as process:
        tree = Tree(process.pid)
        sample = tree.wait_until(lambda sample: sample.workers == 3)
        assert len(sample.processes) == 5  # the rank and Python's resource tracker, too
        stopped, killed, _ = map(int, process.said.split())
        os.kill(stopped, signal.SIGSTOP)
        tree.wait_until(lambda sample: sample.workers == 2)
        os.kill(killed, signal.SIGKILL)  # its parent never reaps it
        tree.wait_until(lambda sample: sample.workers == 1)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), 9)", -9),
        ("os._exit(0)", None),
        ("os.execl(sys.executable, sys.executable, '-c', 'import os; os._exit(3)')", None),  # a program of the script
    ],
)
def test_a_forked_worker_that_ends_badly_is_lost_if_no_process_is_left(how: str, code: int | None) -> None:
    script = f"""
import os, sys, time
print(os.fork() or {how}, flush=True)
time.sleep(600)
"""
    with running(script) as process:
        # How it has ended may show a moment after it no longer counts as alive.
        sample = Tree(process.pid).wait_until(
            lambda sample: sample.workers == 0 and (code is None or sample.lost_worker is not None)
        )
        assert sample.lost_worker == (None if code is None else LostWorker(pid=int(process.said), code=code))


@pytest.mark.parametrize(("name", "is_lost"), [(b"pt_data_worker", True), (b"python", False)])
def test_beside_others_only_what_torch_names_its_worker_is_lost(name: bytes, is_lost: bool) -> None:
    script = f"""
import ctypes, os, signal, time
PR_SET_NAME = 15
if not os.fork():
    time.sleep(600)
worker = os.fork()
if not worker:
    ctypes.CDLL(None).prctl(PR_SET_NAME, {name!r}, 0, 0, 0)
    os._exit(1)
os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
print(worker, flush=True)
time.sleep(600)
"""
    with running(script) as process:
        sample = Tree(process.pid).wait_until(lambda sample: sample.workers == 1)
        assert sample.lost_worker == (LostWorker(pid=int(process.said), code=1) if is_lost else None)


TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
PTRACE_SEIZE = 0x4206
print(libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) or ctypes.get_errno(), flush=True)
time.sleep(600)
"""


def test_a_tracer_is_seen_on_any_thread_unless_it_is_ours() -> None:
    code = """
import threading
thread = threading.Thread(target=threading.Event().wait)
thread.start()
print(thread.native_id, flush=True)
threading.Event().wait()
"""
    with running(code) as process:
        tid = int(process.said)
        assert not Tree(process.pid).look().traced
        with running(TRACER, str(tid)) as tracer:
            if int(tracer.said):
                pytest.skip(f"ptrace is not possible here: {os.strerror(int(tracer.said))}")
            assert Tree(process.pid, agent_pid=process.pid).look().traced
            assert not Tree(process.pid, agent_pid=tracer.pid).look().traced
            assert not Tree(process.pid).look().traced, "what an agent starts may trace"


def test_a_process_that_has_ended_has_no_tree() -> None:
    with running(SLEEPS) as process:
        reader = TreeReader((process.pid, processes.start_ticks(process.pid)))
        assert reader.read(Machine.read()) is not None
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert reader.read(Machine.read()) is None
    assert reader.read(Machine.read()) is None
