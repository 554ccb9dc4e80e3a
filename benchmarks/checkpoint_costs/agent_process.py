"""The agent's side of a rank's checkpoints in a process of its own: slots, and the real saver with its workers."""

import asyncio
import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from holdfast_agent.checkpoints.restore_sources import CheckpointInventory
from holdfast_agent.checkpoints.shard_saver import ShardSaver
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_checkpoint.format.shard_index import step_directory
from holdfast_checkpoint.store.run_checkpoints import open_checkpoints
from holdfast_proto.v1 import store_pb2 as store

RUN = "benchmark"
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Written:
    """An attempt at a checkpoint. ``failure`` is empty if it is committed."""

    step: int
    failure: str


class AgentProcess:
    """Grants slots of ``bytes_per_slot`` and writes full checkpoints from them. A context manager."""

    def __init__(self, folder: Path, bytes_per_slot: int) -> None:
        self.checkpoints = folder / "checkpoints"
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, folder, self.checkpoints, bytes_per_slot))
        self._process.start()
        self.slots: list[Path] = self._pipe.recv()

    def __enter__(self) -> "AgentProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join()

    @property
    def pid(self) -> int:
        """Pid of the workers' parent."""
        assert self._process.pid is not None
        return self._process.pid

    def write(self, step: int) -> None:
        """Begin to write the checkpoint of ``step``, whose snapshot is pinned."""
        self._pipe.send(step)

    def is_done(self) -> bool:
        """Return whether the write has ended, with or without success."""
        return self._pipe.poll()

    def finish(self) -> Path:
        """Wait for the end of the write and return the checkpoint's directory. Raises RuntimeError if it failed."""
        written: Written = self._pipe.recv()
        if written.failure:
            raise RuntimeError(written.failure)
        return step_directory(self.checkpoints, written.step)


def _serve(pipe: Connection, folder: Path, checkpoints: Path, bytes_per_slot: int) -> None:
    asyncio.run(_write_all(pipe, folder, checkpoints, bytes_per_slot))


async def _write_all(pipe: Connection, folder: Path, checkpoints: Path, bytes_per_slot: int) -> None:
    failures: list[str] = []

    def keep_failure(event: store.Event) -> None:
        if event.HasField("checkpoint_failed"):
            failures.append(event.checkpoint_failed.reason)

    memory = SnapshotMemory(Path("/dev/shm"), folder / "slots", f"{RUN}-{folder.name}", "local")
    inventory = CheckpointInventory(open_checkpoints(str(checkpoints), folder, 2, run=RUN), None, None, RUN)
    saver = ShardSaver(inventory, memory, keep_failure, full_every=1, compression=Compression.AUTO)
    try:
        pipe.send(list(memory.grant(0, bytes_per_slot, 1).paths))
        while (step := await asyncio.to_thread(pipe.recv)) is not None:
            saver.schedule(0, step, 1)
            await saver.drain(_PATIENCE_S)
            pipe.send(Written(step, failures.pop() if failures else ""))
    finally:
        inventory.close()
        saver.close()
        memory.remove_all()
