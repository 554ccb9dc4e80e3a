"""A process that does the heavy part of checkpoints: ``python -m holdfast_agent.checkpoints.worker [--background]``.

With ``--background`` it yields the CPU to the ranks.

It reads one job per line on stdin and answers each with one line on stdout, both in JSON::

    {"task": "write", "arguments": {"slot": "/dev/shm/...", ...}}
    {}  or  {"error": "CheckpointUnreadable", "message": "..."}

It ends when its stdin closes, or when the thread that started it ends. An error that no task is known to raise also
ends it. ``workers.py`` is the other end.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from holdfast_base.processes import lower_priority, name_process
from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.codec.codec_registry import BYTE_PLANES, Compression, codec_named
from holdfast_checkpoint.format.manifest import Manifest, load_committed_index, load_manifest
from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_checkpoint.format.slot_shard import read_replica, read_shard, write_replica, write_shard
from holdfast_proto.snapshot import SnapshotError

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEPT_BYTES = 32 << 20  # the largest value that glibc accepts for the second

_WINDOW_S = 0.02
"""Time that this process must have run or waited before CoreShare judges again: long enough to measure, and only a few
tensors."""


class CoreShare:
    """Judges whether this process, which has one thread, gets the CPU time that it asks for.

    Compression is worth its time only on a core that no other process wants. The last judgement stands until there is
    enough new time to judge by.
    """

    def __init__(self) -> None:
        self._looked_s = monotonic()
        self._seen_s = _cpu_times_s()
        self._is_enough = True

    def is_enough(self) -> bool:
        """Return whether it has lately run for longer than it has waited for a core."""
        if monotonic() - self._looked_s < _WINDOW_S:
            return self._is_enough
        self._looked_s = monotonic()
        ran_s, waited_s = (now - then for now, then in zip(_cpu_times_s(), self._seen_s, strict=True))
        if ran_s + waited_s >= _WINDOW_S:
            self._is_enough = ran_s > waited_s
            self._seen_s = _cpu_times_s()
        return self._is_enough


def _cpu_times_s() -> tuple[float, float]:
    """Return the seconds that this thread has run, and that it has waited for a core, ready to run.

    Zeros if the kernel does not count this (schedstat in proc(5)).
    """
    try:
        ran_ns, waited_ns, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except OSError:
        return 0.0, 0.0
    return ran_ns / 1e9, waited_ns / 1e9


_core_share = CoreShare()
_COMPRESSES: dict[str, Callable[[], bool]] = {
    Compression.ALWAYS: lambda: True,
    Compression.NEVER: lambda: False,
    Compression.AUTO: _core_share.is_enough,
}


def write(*, slot: str, directory: str, run: str, world_size: int, base_step: int | None, compression: str) -> None:
    """Write the shard of a slot. See write_shard and Compression."""
    compress = _COMPRESSES[compression]
    write_shard(Path(slot), Path(directory), run=run, world_size=world_size, base_step=base_step, compress=compress)


def save_replica(
    *, slot: str, directory: str, run: str, world_size: int, base_step: int | None, compression: str
) -> None:
    """Write the replica snapshot of a slot. See write_replica and Compression."""
    compress = _COMPRESSES[compression]
    write_replica(Path(slot), Path(directory), run=run, world_size=world_size, base_step=base_step, compress=compress)


def restore(directory: str, rank: int, slot: str, generation: int) -> None:
    """Unpack the state of a rank. See read_shard."""
    read_shard(Path(directory), rank, Path(slot), generation=generation)


def restore_replica(directory: str, rank: int, slot: str, generation: int) -> None:
    """Unpack the replica snapshot of a rank. See read_replica."""
    read_replica(Path(directory), rank, Path(slot), generation=generation)


def verify(directory: str, ranks: Sequence[int], world_size: int) -> None:
    """Read the shards that fall to ``ranks``. See verify_share."""
    verify_share(Path(directory), load_manifest(Path(directory)), ranks, world_size)


def verify_share(directory: Path, manifest: Manifest, ranks: Sequence[int], world_size: int) -> None:
    """Read the shards that fall to ``ranks`` of a world whose size differs from that of the writers.

    Every shard falls to exactly one rank, so the nodes together verify all shards before any rank loads its part.
    Raises CheckpointUnreadable.
    """
    for saved_rank in range(manifest.world_size):
        if saved_rank % world_size in ranks:
            index = load_committed_index(directory, manifest, saved_rank)
            verify_shard(shard_path(directory, saved_rank), index)


_TASKS: dict[str, Callable[..., None]] = {
    "write": write,
    "write_replica": save_replica,
    "restore": restore,
    "restore_replica": restore_replica,
    "verify": verify,
}


def main() -> None:
    """Do jobs until stdin closes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    name_process("holdfast-worker")
    # Ctrl-C reaches the whole process group. The agent handles it, and waits for the checkpoints being written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A library that prints to stdout would corrupt the answers, so they get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    keep_freed_memory()
    codec_named(BYTE_PLANES)  # imports it before the priority drops, so that the first job does not wait for that
    if sys.argv[1:] == ["--background"]:
        lower_priority()
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers)


def _answer(job: dict[str, Any]) -> dict[str, str]:
    try:
        _TASKS[job["task"]](**job["arguments"])
    except (CheckpointError, SnapshotError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, up to some ten MiB, instead of returning it to the kernel.

    The kernel clears every page that it hands out. For buffers that come and go with each chunk, that is as much work
    as encoding them. Does nothing if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


if __name__ == "__main__":
    main()
