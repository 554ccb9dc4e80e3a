"""The threads that copy and compare memory and read slots: as many as torch computes with."""

import os
from concurrent.futures import ThreadPoolExecutor

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process and number of threads. A forked process inherits an entry and none of its threads: it makes its own."""


def copy_threads() -> ThreadPoolExecutor:
    """Return the threads of this process, which start with their first work."""
    key = os.getpid(), number_of_threads()
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(key[1], f"holdfast-copies-{key[0]}")
    return _pools[key]


def end_copy_threads() -> None:
    """End the threads of this process. A later copy starts new ones."""
    mine = [key for key in _pools if key[0] == os.getpid()]
    for key in mine:
        _pools.pop(key).shutdown()


def number_of_threads() -> int:
    """Return the number of these threads, that of torch's own."""
    import torch

    return torch.get_num_threads()
