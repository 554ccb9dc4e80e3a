"""Pauses in which nothing moves."""

import ctypes
import os
import subprocess
import time

from benchmarks.odd_runs.pause import rest
from benchmarks.odd_runs.scene import Scene

_FOREVER_S = 10_000


def sleep(scene: Scene) -> None:
    """Sleep, as a callback with a ``time.sleep`` does."""
    rest(scene.pause)


def sleep_holding_the_lock(scene: Scene) -> None:
    """Sleep in C with the interpreter lock held: no other thread of this process runs Python."""
    library = ctypes.PyDLL(None)
    seconds = _FOREVER_S if scene.pause.endless else scene.pause.left_s
    library.usleep(int(min(seconds, 2000.0) * 1e6))


def wait_for_a_person(scene: Scene) -> None:
    """Block in a read that never returns, as a forgotten breakpoint does."""
    reader, writer = os.pipe()
    if scene.pause.endless:
        os.read(reader, 1)
    waiter = subprocess.Popen(["sleep", f"{scene.pause.left_s:.2f}"], stdout=writer, close_fds=True)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    waiter.wait()


def sleep_in_a_child(scene: Scene) -> None:
    """Wait for a child process that does nothing."""
    seconds = _FOREVER_S if scene.pause.endless else scene.pause.left_s
    subprocess.run(["sleep", f"{seconds:.2f}"], check=True)


def pause_longer_each_time(scene: Scene) -> None:
    """Try again after pauses that double, and print a line each time, as clients of object stores do."""
    seconds = 0.25
    while scene.pause.is_active():
        print(f"no answer, next try in {seconds:g} s", flush=True)
        time.sleep(min(seconds, scene.pause.left_s))
        seconds *= 2.0


def look_for_a_file(scene: Scene) -> None:
    """Look for a file once a second, until somebody has written it."""
    while scene.pause.is_active() and not (scene.folder / "never-written").exists():
        time.sleep(min(1.0, scene.pause.left_s))
