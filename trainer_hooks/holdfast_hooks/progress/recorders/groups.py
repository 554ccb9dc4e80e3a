"""Finds the rank's process groups on devices, and which recorder has their calls."""

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast_hooks.progress.recorders.recorder import has_backend_recorders
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import common_pb2 as common

_NCCL = frozenset(("nccl", "nccl-legacy"))
_NO_DEVICE = frozenset(("gloo", "mpi", "fake"))
"""Backends whose groups are not looked at here: gloo's are, elsewhere; the others have no recorder on any device."""

TORCHCOMMS = "torchcomms"
"""Begins the names of all backends that TorchComms runs."""


@dataclass(frozen=True)
class DeviceGroup:
    """One backend of a process group."""

    source: "common.RecorderSource"
    """Recorder of its calls; RECORDER_SOURCE_NONE: none records them."""
    backend: str
    """Name that the backend gives itself, e.g. ``nccl``. With TorchComms, see :func:`_name`."""
    name: str
    member_runs: tuple[int, ...]
    """Global ranks, ascending, as runs."""
    description: str
    recorder_id: str | None
    """Id of the group in its recorder; None: not known."""


class DeviceGroups:
    """Describes each group once, and holds no group alive. Reporter thread only."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, list[DeviceGroup]] = weakref.WeakKeyDictionary()

    def read(self) -> dict[DeviceGroup, int | None]:
        """Return the collectives that each device backend of each group has counted; None: it does not count.

        Empty while there is no process group. Raises AttributeError or RuntimeError if this torch is not as expected.
        """
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return {}
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        found: dict[DeviceGroup, int | None] = {}
        # A copy first, because the training thread may be creating a group right now.
        for group in list(world.pg_map):
            if group not in self._known:
                self._known[group] = [_describe(group, backend, world) for backend in _backends(group)]
            if self._known[group]:
                counts = {_name(backend): _count(backend) for backend in _backends(group)}
                found.update((one, counts.get(one.backend)) for one in self._known[group])
        return found


def _backends(group: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield each backend of a group that works on a device, once."""
    seen = set()
    for device in group._device_types:
        backend = group._get_backend(device)
        # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around each backend.
        backend = getattr(backend, "wrapped_pg", backend)
        name = _name(backend)
        if name not in _NO_DEVICE and name not in seen:
            seen.add(name)
            yield backend


def _describe(group: Any, backend: Any, world: Any) -> DeviceGroup:  # noqa: ANN401
    source, recorder_id = _source(group, backend, world)
    runs = runs_of(sorted(sys.modules["torch.distributed"].get_process_group_ranks(group)))
    return DeviceGroup(source, _name(backend), group.group_name, tuple(runs), group.group_desc or "", recorder_id)


def _source(group: Any, backend: Any, world: Any) -> "tuple[common.RecorderSource, str | None]":  # noqa: ANN401
    """Return the recorder of a backend, and the group's id in it.

    NCCL's recorder files a group under the number of its ProcessGroupNCCL object, which ``uid`` returns
    (``getUid`` in ProcessGroupNCCL.hpp). Hooks number their groups, too, but show no number.

    Torch 2.15 hooks the groups of TorchComms as well. But the hook takes what TorchComms calls "nccl" for a backend
    that records itself, and records nothing. Of other backends it ends each call when it is made.
    """
    if _is_torchcomms(backend):
        return common.RECORDER_SOURCE_NONE, None
    if backend.name() in _NCCL and hasattr(backend, "uid"):
        return common.RECORDER_SOURCE_NCCL, str(backend.uid)
    if has_backend_recorders() and group in getattr(world, "pg_flight_recorder_hooks", ()):
        return common.RECORDER_SOURCE_BACKEND, None
    return common.RECORDER_SOURCE_NONE, None


def _name(backend: Any) -> str:  # noqa: ANN401
    """Return the name of a backend. TorchComms gives its backends the names of torch's own, such as nccl."""
    name: str = backend.name()
    return f"{TORCHCOMMS}-{name}" if _is_torchcomms(backend) and not name.startswith(TORCHCOMMS) else name


def _is_torchcomms(backend: Any) -> bool:  # noqa: ANN401
    """Return whether TorchComms runs a backend. Torch has this name only where the package is installed."""
    wrapper = getattr(sys.modules["torch.distributed.distributed_c10d"], "_BackendWrapper", None)
    return wrapper is not None and isinstance(backend, wrapper)


def _count(backend: Any) -> int | None:  # noqa: ANN401
    try:
        return int(backend._get_sequence_number_for_group())
    except RuntimeError:  # a backend that does not number its calls
        return None
