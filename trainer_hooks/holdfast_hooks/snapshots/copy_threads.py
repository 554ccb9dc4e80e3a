"""Threads that copy and compare memory, as many as torch computes with."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache


def copy_threads() -> ThreadPoolExecutor:
    """Return the threads of this process."""
    return _of_process(os.getpid(), number_of_threads())


def number_of_threads() -> int:
    """Return how many they are."""
    import torch

    return torch.get_num_threads()


@cache
def _of_process(pid: int, threads: int) -> ThreadPoolExecutor:
    """Return threads of the process ``pid``: a fork inherits none."""
    return ThreadPoolExecutor(threads, f"holdfast-copies-{pid}")
