"""Three ways to checkpoint a training loop: Holdfast's hooks and agent, torch's async_save, and torch.save."""

import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.checkpoint_costs.agent_process import RUN, AgentProcess
from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_hooks import Stateful
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.snapshots.slot_requests import SlotRequests
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.session_pb2 import SlotGrant, SnapshotTaken

States = Callable[[], Mapping[str, Stateful]]


class Writer(Protocol):
    """One way to write a checkpoint."""

    def begin(self) -> None:
        """Take the state and begin to write it. The training thread waits for this."""

    def is_done(self) -> bool:
        """Return whether the checkpoint is written. Does not wait."""

    def finish(self) -> None:
        """Wait until the checkpoint is written, and remove it. Raises the error of the write."""


class Holdfast:
    """The hooks' snapshots into slots of a real agent's memory, and its worker processes. A context manager."""

    def __init__(self, folder: Path, state: Mapping[str, Stateful]) -> None:
        self._step = -1
        self._slot_requests = SlotRequests(OnceLog())
        context = RankContext(run=RUN, generation=1, agent="unix:/nowhere", black_box="", snapshot_every=1)
        timeline = Timeline(lambda _step, _phase, _unix_ns: None)
        self._snapshots = SnapshotTaker(
            state=state,
            context=context,
            rank=0,
            slot_requests=self._slot_requests,
            timeline=timeline,
            once=OnceLog(),
            device=OwnDevice("cpu", {}, may_have_gpus=False),
        )
        assert self.snapshot() is None  # this asks for slots
        self.agent = AgentProcess(folder, self._slot_requests.needed_bytes)
        self._slot_requests.receive(SlotGrant(paths=[str(slot) for slot in self.agent.slots]))
        for thread in threading.enumerate():
            if thread.name == "holdfast-slots":
                thread.join()  # a run trains steps before its first snapshot, so it does not wait for this either

    def __enter__(self) -> "Holdfast":
        return self

    def __exit__(self, *error: object) -> None:
        self.agent.__exit__(*error)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        assert self._slot_requests.grant is not None
        return self._slot_requests.grant.bytes_per_slot

    def snapshot(self, *, persist: bool = False) -> SnapshotTaken | None:
        """Take a snapshot as at the end of a step."""
        self._step += 1
        return self._snapshots.at_boundary(self._step, commanded=persist, last=False)

    def begin(self) -> None:
        """See Writer."""
        taken = self.snapshot(persist=True)
        assert taken is not None
        assert taken.persist
        self.agent.write(self._step)

    def is_done(self) -> bool:
        """See Writer."""
        return self.agent.is_done()

    def finish(self) -> None:
        """See Writer."""
        self.directory = self.agent.finish()

    def last_ratio(self) -> float:
        """Return raw over stored bytes of the last checkpoint."""
        manifest = load_manifest(self.directory)
        return manifest.raw_bytes / manifest.stored_bytes

    def worker_cpu_s(self) -> float:
        """Return the CPU time, user and system, that the agent's workers have taken so far."""
        times = [worker.cpu_times() for worker in psutil.Process(self.agent.pid).children()]
        return sum(one.user + one.system for one in times)

    def peak_worker_bytes(self) -> int:
        """Write a checkpoint and return the peak of the workers' own memory while they write, in bytes."""
        workers = psutil.Process(self.agent.pid).children()
        self.begin()
        peak_kib = 0
        while not self.is_done():
            lines = [line for worker in workers for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines()]
            peak_kib = max(peak_kib, sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
        self.finish()
        return peak_kib << 10


class AsyncSave:
    """``dcp.async_save`` with its default stager, or with one that stages into shared memory."""

    def __init__(self, folder: Path, state: Mapping[str, Stateful], *, shared_memory: bool) -> None:
        self._folder = folder / "dcp"
        self._state = state
        self._stager = (
            DefaultStager(
                StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=True,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            )
            if shared_memory
            else None
        )
        self._future: Future[Any]

    def begin(self) -> None:
        """See Writer."""
        future = async_save(dict(self._state), checkpoint_id=self._folder, async_stager=self._stager, no_dist=True)
        assert isinstance(future, Future)
        self._future = future

    def is_done(self) -> bool:
        """See Writer."""
        return self._future.done()

    def finish(self) -> None:
        """See Writer."""
        self._future.result()
        shutil.rmtree(self._folder)


class TorchSave:
    """``torch.save``: the training thread waits for all of it."""

    def __init__(self, folder: Path, state: Mapping[str, Stateful]) -> None:
        self._file = folder / "state.pt"
        self._state = state

    def begin(self) -> None:
        """See Writer."""
        torch.save({name: stateful.state_dict() for name, stateful in self._state.items()}, self._file)

    def is_done(self) -> bool:
        """See Writer."""
        return True

    def finish(self) -> None:
        """See Writer."""
        self._file.unlink()
