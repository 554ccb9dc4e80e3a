"""A stand-in for process groups on devices and NCCL's recorder: torch for the CPU has neither."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as bindings

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress.device_poll import DevicePoll


class Backend:
    def __init__(self, name: str, uid: int | None = None) -> None:
        self._name, self.calls = name, 0
        if uid is not None:
            self.uid = uid

    def name(self) -> str:
        return self._name

    def _get_sequence_number_for_group(self) -> int:
        return self.calls


class TorchCommsBackend(Backend):
    """Stands for the ``_BackendWrapper`` of torchcomms: see ``getBackendName`` in its BackendWrapper.cpp."""


class Group:
    """A process group: a backend for each device."""

    group_desc = "mesh_dp"

    def __init__(self, name: str, ranks: list[int], **backends: Backend) -> None:
        self.group_name, self.ranks, self.backends = name, ranks, backends
        self._device_types = list(backends)

    def _get_backend(self, device: str) -> Backend:
        return self.backends[device]


class DeviceWorld:
    """Torch's table of groups, and a recorder of NCCL with one status. It counts the dumps that are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str = "2.14.1+cu130") -> None:
        self.groups: dict[Group, None] = {}
        self.hooks: dict[Group, None] = {}
        self.status: dict[str, dict[str, str]] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.place = 0
        self.opening: list[object] = []
        world = SimpleNamespace(pg_map=self.groups, pg_flight_recorder_hooks=self.hooks)
        monkeypatch.setattr(c10d, "_world", world)
        distributed = sys.modules["torch.distributed"]
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_process_group_ranks", lambda group: group.ranks)
        monkeypatch.setattr(sys.modules["torch"], "__version__", version)
        monkeypatch.setattr(bindings, "_dump_nccl_trace_json", self._dump_nccl, raising=False)
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
            monkeypatch.delenv(name, raising=False)

    def add(self, name: str = "0", /, *, hooked: bool = False, **backends: Backend) -> Group:
        """Make a group, with a hook that records its calls if it is ``hooked``."""
        group = Group(name, [1, 0], **backends)
        self.groups[group] = None
        if hooked:
            self.hooks[group] = None
        return group

    def add_nccl(self, number: int = 0, *, calls: int = 0) -> Backend:
        """Make a group that NCCL records, and return its backend."""
        backend = Backend("nccl", uid=number)
        backend.calls = calls
        self.add(str(number), cuda=backend)
        return backend

    def add_torchcomms(self, monkeypatch: pytest.MonkeyPatch, backend: str, **others: Backend) -> None:
        """Make a group as torch does where torchcomms is installed. Torch 2.15 attaches its own hook as well."""
        monkeypatch.setattr(c10d, "_BackendWrapper", TorchCommsBackend, raising=False)
        self.add(hooked=True, cuda=TorchCommsBackend(backend), **others)

    def poll(self) -> DevicePoll:
        return DevicePoll(lambda: self.place, self.opening, OnceLog(), has_gloo=lambda: False)

    def _dump_nccl(self, collectives: bool, only_active: bool) -> bytes:
        self.asked.append(("nccl", collectives))
        return json.dumps({"version": "2.10", "pg_config": {}, "pg_status": self.status}).encode()


def record_backends(monkeypatch: pytest.MonkeyPatch, status: dict[str, dict[str, str]]) -> list[tuple[str, bool, bool]]:
    """Give torch a recorder for each backend. Return the list of what it will be asked: see its dump."""
    asked = []

    def dump(collectives: bool, only_active: bool, backend: str = "gloo") -> bytes:
        asked.append((backend, collectives, only_active))
        return json.dumps({"pg_status": status}).encode()

    dump.__doc__ = "_dump_fr_trace_json(includeCollectives: bool | None = None, backend: str = 'gloo') -> bytes"
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", dump)
    return asked


def numbers(enqueued: int, started: int, completed: int) -> dict[str, str]:
    return {
        "last_enqueued_collective": str(enqueued),
        "last_started_collective": str(started),
        "last_completed_collective": str(completed),
    }
