"""Pauses in C calls that hold the interpreter lock: no other thread of the process runs Python."""

import itertools
import pickle
import random
import re
import time

from benchmarks.odd_runs.scene import Scene

_MEASURED = 2_000_000


def sum_once(scene: Scene) -> None:
    """Stay in a single call. Its length is chosen by a measurement before it."""
    if scene.pause.endless:
        sum(itertools.repeat(1))
    began_s = time.perf_counter()
    sum(itertools.repeat(1, _MEASURED))
    each_s = (time.perf_counter() - began_s) / _MEASURED
    while scene.pause.is_active():
        sum(itertools.repeat(1, int(max(0.2, scene.pause.left_s) / each_s)))


def pickle_much(scene: Scene) -> None:
    """Pickle a large nested structure, a tenth of a second for each call."""
    nested = [{"step": number, "values": [number, [number, str(number)]]} for number in range(80_000)]
    while scene.pause.is_active():
        pickle.dumps(nested)


def match(scene: Scene) -> None:
    """Match an expression that backtracks. Each call takes some seconds, or years."""
    pattern = re.compile("(a+)+$")
    if scene.pause.endless:
        pattern.match("a" * 200 + "b")
    while scene.pause.is_active():
        pattern.match("a" * 22 + "b")


def sort(scene: Scene) -> None:
    """Sort long lists."""
    numbers = [random.random() for _ in range(500_000)]
    while scene.pause.is_active():
        sorted(numbers)


def power(scene: Scene) -> None:
    """Raise long integers to powers."""
    while scene.pause.is_active():
        pow(3, 600_000)
