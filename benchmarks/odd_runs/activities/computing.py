"""Pauses in which the rank's own threads compute."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.odd_runs.pause import Pause
from benchmarks.odd_runs.scene import Scene

_SLICE = 20_000


def loop(scene: Scene) -> None:
    """Compute in pure Python, as tracing and lowering in a recompilation do."""
    _loop(scene.pause)


def multiply(scene: Scene) -> None:
    """Compute in C with the interpreter lock released, as longer sequences do."""
    matrix = torch.ones(256, 256)
    while scene.pause.is_active():
        matrix = torch.tanh(matrix @ matrix)


def closure(scene: Scene) -> None:
    """Call a closure again and again, as L-BFGS does in one step of the optimizer."""
    weight = torch.nn.Parameter(torch.ones(64, 64))
    while scene.pause.is_active():
        optimizer = torch.optim.LBFGS([weight], max_iter=4)

        def evaluate(optimizer: torch.optim.Optimizer = optimizer) -> float:
            optimizer.zero_grad()
            loss = (weight @ weight - 1.0).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item()

        optimizer.step(evaluate)  # type: ignore[no-untyped-call]


def micro_steps(scene: Scene) -> None:
    """Accumulate the gradients of a hundred micro steps and more, before the ranks exchange them."""
    layer = torch.nn.Linear(256, 256)
    while scene.pause.is_active():
        layer(torch.ones(32, 256)).square().mean().backward()
        time.sleep(0.02)  # as for a device


def thread_pool(scene: Scene) -> None:
    """Compute in two threads of a pool while the training thread waits for them."""
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(_loop, scene.pause) for _ in range(2)]:
            future.result()


def wait_for_a_lock(scene: Scene) -> None:
    """Wait for a lock that a thread holds while it computes."""
    lock, is_held = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            _loop(scene.pause)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    with lock:
        thread.join()


def spin(scene: Scene) -> None:
    """Yield the core in a tight loop, as code that polls a flag does."""
    while scene.pause.is_active():
        os.sched_yield()


def _loop(pause: Pause) -> None:
    while pause.is_active():
        for _ in range(_SLICE):
            pass
