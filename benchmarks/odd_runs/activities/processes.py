"""Pauses in which child processes work."""

import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks.odd_runs.scene import Scene

_BURN = "import os, sys, time\nparent, until = os.getppid(), time.monotonic() + float(sys.argv[1])\n"
_BURN += "while os.getppid() == parent and time.monotonic() < until:\n    sum(range(50000))\n"
_LONGEST_S = 300.0
"""Seconds after which a child ends. It also ends when its parent does."""


def compilers(scene: Scene) -> None:
    """Wait for two compilers."""
    seconds = min(scene.pause.left_s, _LONGEST_S)
    children = [subprocess.Popen([sys.executable, "-S", "-c", _BURN, str(seconds)]) for _ in range(2)]
    for child in children:
        child.wait()


def process_pool(scene: Scene) -> None:
    """Wait for a pool of processes that preprocess data."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(_burn, min(scene.pause.left_s, _LONGEST_S)).result()


def forks(scene: Scene) -> None:
    """Start short processes, one after the other."""
    while scene.pause.is_active():
        subprocess.run(["true"], check=True)


def _burn(for_s: float) -> None:
    parent, until_s = os.getppid(), time.monotonic() + for_s
    while os.getppid() == parent and time.monotonic() < until_s:
        sum(range(50_000))
