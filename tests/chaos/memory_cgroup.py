"""A memory cgroup of its own, with a limit that the kernel enforces."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_MOUNT = Path("/sys/fs/cgroup")
_LEAVE_PATIENCE_S = 5.0


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Yield a cgroup of version 1 or 2. A process joins it by its pid in ``cgroup.procs``. Remove it at the end.

    Skips the test if none can be made.
    """
    parent, limits = _place()
    group = parent / f"holdfast-{os.getpid()}"
    try:
        group.mkdir()
        for name, value in limits.items():
            if (group / name).exists():  # swap is not counted on every kernel
                (group / name).write_text(value.format(limit_bytes))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made in {parent}: {error.strerror}")
    try:
        yield group
    finally:
        _remove(group)


def _place() -> tuple[Path, dict[str, str]]:
    """Return a folder in which a cgroup can be made, and the files and values that limit it."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in own:
        if "memory" in controllers.split(","):
            limits = {"memory.limit_in_bytes": "{}", "memory.memsw.limit_in_bytes": "{}"}
            return _MOUNT / "memory" / path.lstrip("/"), limits
    for _, controllers, path in own:
        here = _MOUNT / path.lstrip("/")
        for level in (here, *here.parents) if not controllers else ():
            with suppress(OSError):
                if "memory" in (level / "cgroup.subtree_control").read_text().split():
                    return level, {"memory.max": "{}", "memory.swap.max": "0"}
    pytest.skip("no cgroup here hands memory limits down: none is mounted, or memory is not in cgroup.subtree_control")


def _remove(group: Path) -> None:
    """Remove a cgroup as soon as the last process has left it."""
    deadline = time.monotonic() + _LEAVE_PATIENCE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
