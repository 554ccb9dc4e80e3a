"""Torch's functions that make groups, replaced by ones that wait."""

import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed.distributed_c10d as c10d

from holdfast_hooks.progress.group_making import MAKERS, is_making_groups, watch_makers


def blocked_makers(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Replace the functions; return the event for which they wait. They do nothing else."""
    leave = threading.Event()
    for name in MAKERS:
        stand_in: Any = lambda *_, **__: leave.wait()  # noqa: E731 - each needs a name of its own
        functools.update_wrapper(stand_in, inspect.unwrap(vars(c10d)[name]))
        monkeypatch.setattr(c10d, name, stand_in)
    watch_makers()
    return leave


@contextlib.contextmanager
def making(leave: threading.Event, name: str, **arguments: object) -> Iterator[None]:
    """Let another thread be in one of the functions."""
    thread = threading.Thread(target=vars(c10d)[name], kwargs=arguments)
    thread.start()
    try:
        while not is_making_groups():
            time.sleep(0.001)
        yield
    finally:
        leave.set()
        thread.join()
