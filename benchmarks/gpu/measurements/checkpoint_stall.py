"""How long the training thread waits for a snapshot of GPU memory, and how much the next steps are slowed down.

The state is laid out as in large models: bf16 weights, fp32 master weights and Adam's two moments, 14 bytes per
parameter. It is compared with plain copies to locked memory, which the training thread waits for, and with the stall
of torch's ``async_save``.
"""

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.timing import mib, synchronize
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.restore.slot_restore import restore
from holdfast_hooks.snapshots.slot_requests import SlotRequests
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import allocate
from holdfast_proto.v1.session_pb2 import SlotGrant, SnapshotTaken

_WIDTH, _SMALL_WIDTH = 4096, 256
_LAYERS = 8
_ROUNDS = 7
_SLOTS = 3
_STEPS_AFTER = 3
_WAIT_S = 120.0


class Training:
    """A stack of layers in bf16 with fp32 master weights."""

    def __init__(self, device: str, width: int) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(_LAYERS))).to(device)
        self.master = Masters({name: value.detach().clone() for name, value in self.model.named_parameters()})
        self.model.bfloat16()
        self.optimizer = torch.optim.AdamW(self.master.tensors.values(), lr=1e-4, fused=True)
        self.state: dict[str, Any] = {"model": self.model, "master": self.master, "optimizer": self.optimizer}
        self._x = torch.ones(1024 if device == "cuda" else 4, width, device=device, dtype=torch.bfloat16)

    def step(self) -> None:
        """Train a step."""
        self.model(self._x).float().square().mean().backward()
        for name, weight in self.model.named_parameters():
            assert weight.grad is not None
            self.master.tensors[name].grad = weight.grad.float()
            weight.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(self.master.tensors[name])

    def tensors(self) -> list[torch.Tensor]:
        """Return the live tensors of the state."""
        moments: list[dict[str, Any]] = list(self.optimizer.state.values())
        own = [value for moment in moments for value in moment.values() if isinstance(value, torch.Tensor)]
        return [*(weight.detach() for weight in self.model.parameters()), *self.master.tensors.values(), *own]


class Masters:
    """The fp32 weights, by the names of the model's parameters."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the live tensors."""
        return self.tensors

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Copy into the live tensors."""
        for name, tensor in state_dict.items():
            self.tensors[name].copy_(tensor)


class Snapshots:
    """The hooks' snapshots into slots that are made here."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._step = -1
        self._landed = threading.Semaphore(0)
        self._slot_requests = SlotRequests(OnceLog())
        self._taker = SnapshotTaker(
            state=training.state,
            context=RankContext(run="gpu", generation=1, agent="unix:/none", black_box="", snapshot_every=1),
            rank=0,
            slot_requests=self._slot_requests,
            timeline=Timeline(lambda _step, _phase, _unix_ns: None),
            once=OnceLog(),
            device=OwnDevice(None, training.state, may_have_gpus=True),
            late=self._land,
        )
        self.newest: SnapshotTaken | None = None
        self.take()  # asks for slots
        self.paths = [folder / f"slot-{number}" for number in range(_SLOTS)]
        for path in self.paths:
            allocate(path, self._slot_requests.needed_bytes)
        self._slot_requests.receive(SlotGrant(paths=[str(path) for path in self.paths]))
        self._slot_requests.next_request()  # the reporter calls it in each poll: it locks the slots for the GPU
        for thread in threading.enumerate():
            if thread.name == "holdfast-slots":
                thread.join()

    def take(self) -> None:
        """Take a snapshot as at the end of a step."""
        self._step += 1
        taken = self._taker.at_boundary(self._step, commanded=False, last=False)
        if taken is not None:
            self._land(taken)

    def wait(self) -> SnapshotTaken:
        """Wait until the newest snapshot is complete."""
        if not self._landed.acquire(timeout=_WAIT_S):
            raise TimeoutError(f"no snapshot was complete within {_WAIT_S:g} s")
        assert self.newest is not None
        return self.newest

    def close(self) -> None:
        """Take no more."""
        self._taker.close(_WAIT_S)

    def _land(self, taken: SnapshotTaken) -> None:
        self.newest = taken
        self._landed.release()


def measure(device: str) -> Outcome:
    """Take snapshots of a training loop."""
    training = Training(device, _WIDTH if device == "cuda" else _SMALL_WIDTH)
    training.step()
    nbytes = sum(tensor.nbytes for tensor in training.tensors())
    with tempfile.TemporaryDirectory(prefix="hf-", dir=_memory_folder(4 * _SLOTS * nbytes // 3)) as folder:
        figures, checks = _compare(training, Path(folder))
    return Outcome.of({"state": mib(nbytes), **figures}, checks)


def _compare(training: Training, folder: Path) -> tuple[dict[str, str], list[Check]]:
    snapshots = Snapshots(training, folder)
    locked = training.device == "cuda"
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=locked) for tensor in training.tensors()]
    taken: dict[str, list[float]] = {"plain": [], "snapshot": [], "complete": [], "steps": [], "after": [], "dcp": []}
    for _ in range(_ROUNDS):
        taken["plain"].append(_timed(training, lambda: _copy(training, copies)))
        taken["steps"].append(_timed(training, lambda: _steps(training)))
        began_s = time.perf_counter()
        snapshots.take()
        taken["snapshot"].append(time.perf_counter() - began_s)
        _steps(training)
        synchronize(training.device)
        taken["after"].append(time.perf_counter() - began_s)
        newest = snapshots.wait()
        taken["complete"].append(time.perf_counter() - began_s)
        taken["dcp"].append(_async_save_s(training, folder))
    exact = _is_restored(training, snapshots, newest)
    snapshots.close()
    median = {name: statistics.median(values) for name, values in taken.items()}
    figures = {
        "stall of the training thread for a snapshot": _ms(median["snapshot"]),
        "plain copies to locked memory": _ms(median["plain"]),
        "stall of torch's async_save": _ms(median["dcp"]),
        f"{_STEPS_AFTER} steps without a snapshot": _ms(median["steps"]),
        f"a snapshot and {_STEPS_AFTER} steps": _ms(median["after"]),
        "until the snapshot is complete": _ms(median["complete"]),
    }
    is_short = training.device == "cpu" or median["snapshot"] < median["plain"]
    return figures, [Check("the stall is shorter than plain copies", is_short), exact]


def _is_restored(training: Training, snapshots: Snapshots, newest: SnapshotTaken) -> Check:
    """Take a last snapshot without training after it, and load it into a new state."""
    synchronize(training.device)
    snapshots.take()
    newest = snapshots.wait()
    other = Training(training.device, training.model[0].in_features)  # type: ignore[arg-type]
    other.step()
    restore(snapshots.paths[newest.slot], other.state, rank=0)
    pairs = zip(training.tensors(), other.tensors(), strict=True)
    return Check("the snapshot holds the state bit by bit", all(torch.equal(one, two) for one, two in pairs))


def _async_save_s(training: Training, folder: Path) -> float:
    place = folder / "dcp"
    began_s = time.perf_counter()
    future: Any = async_save(dict(training.state), checkpoint_id=place, no_dist=True)
    stall_s = time.perf_counter() - began_s
    future.result()
    shutil.rmtree(place)
    return stall_s


def _steps(training: Training) -> None:
    for _ in range(_STEPS_AFTER):
        training.step()


def _copy(training: Training, copies: list[torch.Tensor]) -> None:
    for copy, tensor in zip(copies, training.tensors(), strict=True):
        copy.copy_(tensor)


def _timed(training: Training, work: Callable[[], None]) -> float:
    synchronize(training.device)
    began_s = time.perf_counter()
    work()
    synchronize(training.device)
    return time.perf_counter() - began_s


def _memory_folder(needed_bytes: int) -> str | None:
    """Return the folder of shared memory if that is large enough; None: the usual folder for temporary files."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 2 * needed_bytes else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
