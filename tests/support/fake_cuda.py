"""A stand-in for torch.cuda with several GPUs. It keeps to CUDA's rules about threads and contexts.

Each thread has a current device, GPU 0 at first. A call that works on a GPU creates a context on the thread's current
device. What torch does without a context (statistics, properties, numbers of devices) creates none here either.
"""

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch


class FakeEvent:
    def __init__(self, cuda: "FakeCuda", blocking: bool = False) -> None:
        self.gpu: int | None = None
        self.blocking = blocking
        self.reached = threading.Event()
        self._cuda = cuda

    def record(self, stream: "FakeStream") -> None:
        """Record on the stream's GPU, as torch's guard does."""
        self.gpu = stream.gpu
        self._cuda.log.append(f"record {stream.name}")

    def query(self) -> bool:
        self._cuda.works()
        return self.reached.is_set()

    def synchronize(self) -> None:
        self._cuda.works()
        assert self.reached.wait(30)


class FakeStream:
    def __init__(self, cuda: "FakeCuda", gpu: int, name: str) -> None:
        self.gpu, self.name, self._cuda = gpu, f"{name} of {gpu}", cuda

    def wait_stream(self, other: "FakeStream") -> None:
        assert self.gpu == other.gpu
        self._cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        assert event.gpu == self.gpu
        self._cuda.log.append(f"{self.name} waits for an event")


class FakeCuda:
    """A machine with ``gpus``, and one process that uses them."""

    def __init__(self, gpus: int) -> None:
        self.initialized = False
        self.allocated = [0] * gpus
        self.has_statistics = True
        self.contexts: set[int] = set()
        self.log: list[str] = []
        """Work in the order in which it was enqueued."""
        self.locked: dict[int, int] = {}
        """Address -> bytes that are locked."""
        self.random = {gpu: torch.tensor([gpu], dtype=torch.uint8) for gpu in range(gpus)}
        self.names = [f"GPU {gpu}" for gpu in range(gpus)]
        self._thread = threading.local()
        self._streams: dict[int, FakeStream] = {}

    @property
    def current(self) -> int:
        return getattr(self._thread, "gpu", 0)

    def use(self, gpu: int, nbytes: int = 1 << 20) -> None:
        """Do what a program does that puts tensors on a GPU."""
        self.initialized = True
        self.contexts.add(gpu)
        self.allocated[gpu] += nbytes

    def set_device(self, gpu: int) -> None:
        self.initialized = True
        self._thread.gpu = gpu

    def works(self) -> None:
        assert self.initialized
        self.contexts.add(self.current)

    @contextlib.contextmanager
    def device(self, gpu: int) -> Iterator[None]:
        before = self.current
        self._thread.gpu = gpu
        yield
        self._thread.gpu = before

    def current_stream(self, gpu: int | None = None) -> FakeStream:
        gpu = self.current if gpu is None else gpu
        return self._streams.setdefault(gpu, FakeStream(self, gpu, "default"))

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Select a stream. As in torch, selecting the one before again sets up its GPU."""
        before = self.current_stream()
        default, self._streams[stream.gpu] = self.current_stream(stream.gpu), stream
        yield
        self._streams[stream.gpu] = default
        self.contexts.add(before.gpu)

    def memory_allocated(self, gpu: int) -> int:
        if not self.has_statistics:
            raise RuntimeError("this allocator has no statistics")
        return self.allocated[gpu]

    def memory_stats(self, gpu: int) -> dict[str, int]:
        return {"allocated_bytes.all.current": self.memory_allocated(gpu), "reserved_bytes.all.current": 7}

    def properties(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=80 << 30, uuid=f"00-{gpu}", name=self.names[gpu])

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.works()
        self.locked[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802 - CUDA's name
        self.works()
        del self.locked[address]

    def get_rng_state(self, device: str | int = "cuda") -> torch.Tensor:
        return self.random[self.current if device == "cuda" else int(device)]

    def set_rng_state(self, state: torch.Tensor, device: str | int = "cuda") -> None:
        self.random[self.current if device == "cuda" else int(device)] = state

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replaced: dict[str, Any] = {
            "is_initialized": lambda: self.initialized,
            "is_available": lambda: True,
            "device_count": lambda: len(self.allocated),
            "current_device": lambda: self.current,
            "set_device": self.set_device,
            "memory_allocated": self.memory_allocated,
            "memory_stats": self.memory_stats,
            "get_device_properties": self.properties,
            "device": self.device,
            "stream": self.stream,
            "current_stream": self.current_stream,
            "Stream": lambda: FakeStream(self, self.current, "copies"),
            "Event": lambda blocking=False: FakeEvent(self, blocking),
            "cudart": lambda: self,
            "get_rng_state": self.get_rng_state,
            "set_rng_state": self.set_rng_state,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(torch.cuda, name, value)


class TensorOn:
    """A tensor that seems to be on a GPU."""

    def __init__(self, device: str, value: float = 1.0) -> None:
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        self._value = torch.tensor([value])

    def detach(self) -> torch.Tensor:
        return self._value

    def to(self, device: str, *, non_blocking: bool) -> torch.Tensor:
        assert (device, non_blocking) == ("cpu", True)
        return self._value
