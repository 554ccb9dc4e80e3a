"""Pauses in a real data loader with worker processes."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.odd_runs.pause import Pause
from benchmarks.odd_runs.scene import Scene

from . import network

_WORKERS = 2
_SAMPLES = 8
_FOREVER_S = 10_000.0


class Samples(Dataset[torch.Tensor]):
    """Samples, of which the first one takes long."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            self._first()
        return torch.full((4,), float(index))


def worker_computes(scene: Scene) -> None:
    """Load an epoch whose first batch takes a worker long to compute, as tokenizing does."""
    _epoch(lambda: _compute(scene.pause))


def worker_sleeps(scene: Scene) -> None:
    """Load an epoch while a worker waits for storage that does not answer."""
    _epoch(lambda: time.sleep(min(scene.pause.left_s, _FOREVER_S)))


def worker_reads(scene: Scene) -> None:
    """Load an epoch while a worker reads from a slow file system."""
    _epoch(lambda: network.read(scene))


def workers_start(scene: Scene) -> None:
    """Load an epoch whose new workers build their index before the first batch."""
    _epoch(lambda: None, start=lambda _: _compute(scene.pause))


def worker_is_stopped(_scene: Scene) -> None:
    """Load an epoch with a worker that is stopped, while the rank waits for its batch."""
    _epoch(lambda: os.kill(multiprocessing.current_process().pid or 0, signal.SIGSTOP))


def _epoch(first: Callable[[], None], *, start: Callable[[int], None] | None = None) -> None:
    loader = DataLoader(
        Samples(first), batch_size=2, num_workers=_WORKERS, worker_init_fn=start, multiprocessing_context="fork"
    )
    for _ in loader:
        pass


def _compute(pause: Pause) -> None:
    parent = os.getppid()
    while pause.is_active() and os.getppid() == parent:
        sum(range(50_000))
