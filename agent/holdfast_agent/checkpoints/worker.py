"""A process that does the heavy part of checkpoints: ``python -m holdfast_agent.checkpoints.worker [PRIORITY]``.

Takes a job per line on stdin and answers each with a line on stdout, JSON both::

    {"task": "write", "arguments": {"slot": "/dev/shm/...", ...}}
    {}  or  {"error": "CheckpointUnreadable", "message": "..."}

It ends with its stdin, and with the thread that has started it. An error that no task is known to raise ends it
as well. See ``checkpoint_workers.py`` for the other end.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast_agent.checkpoints.allocator import keep_freed_memory
from holdfast_agent.checkpoints.core_share import CoreShare
from holdfast_agent.checkpoints.loader import verify_share
from holdfast_checkpoint.codec.registry import BYTE_PLANES, Compression, codec_named
from holdfast_checkpoint.errors import CheckpointError
from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.priority import lower_priority, use_idle_time
from holdfast_proto.snapshot import SnapshotError

_PR_SET_PDEATHSIG = 1


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


def restore(directory: str, rank: int, slot: str, generation: int) -> None:
    """Unpack the state of a rank. See read_shard."""
    read_shard(Path(directory), rank, Path(slot), generation=generation)


def verify(directory: str, ranks: Sequence[int], world_size: int) -> None:
    """Read the shards that fall to ``ranks``. See verify_share."""
    verify_share(Path(directory), load_manifest(Path(directory)), ranks, world_size)


_TASKS: dict[str, Callable[..., None]] = {"write": write, "restore": restore, "verify": verify}


_PRIORITIES: dict[str, Callable[[], None]] = {"normal": lambda: None, "low": lower_priority, "idle": use_idle_time}


def main() -> None:
    """Do jobs until there is nobody to give them."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the agent, which sees its checkpoints written first
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    keep_freed_memory()
    codec_named(BYTE_PLANES)  # before the priority: a start must not take long
    _PRIORITIES[sys.argv[1]]()
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers)


def _answer(job: dict[str, Any]) -> dict[str, str]:
    try:
        _TASKS[job["task"]](**job["arguments"])
    except (CheckpointError, SnapshotError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


if __name__ == "__main__":
    main()
