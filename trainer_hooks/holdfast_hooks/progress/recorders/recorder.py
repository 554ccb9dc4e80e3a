"""Reads torch's recorders: the generic one, NCCL's own, and generic ones for one backend alone.

Each source numbers its groups from 0, so an id means nothing without its source. Nothing here imports torch.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from holdfast_proto.v1 import common_pb2 as common

Dump = Callable[[bool, bool], bytes]
"""Torch's dump: (include collectives, only active) -> JSON."""


class RecorderUnavailableError(Exception):
    """This torch has no Flight Recorder with an interface that we know."""


def find_dump() -> Dump | None:
    """Return torch's dump function, or None while there is no process group.

    It never imports torch. Raises RecorderUnavailableError if this torch does not have the function.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    bindings = sys.modules["torch"]._C._distributed_c10d
    dump = getattr(bindings, "_dump_fr_trace_json", None)
    if dump is None:
        raise RecorderUnavailableError(f"torch {sys.modules['torch'].__version__} has no _dump_fr_trace_json")
    return cast(Dump, dump)


Status = Mapping[str, Mapping[str, str]]
"""Group id of one source -> last_enqueued_collective, last_started_collective, last_completed_collective."""

_SAFE_NCCL_DUMPS = (2, 14)
"""First torch whose NCCL recorder may be dumped with entries while the rank trains.

Before, a dump asks CUDA events for their state after it has released the recorder's lock. The watchdog may free an
event at that moment, and the process crashes (pytorch/pytorch#192232). A dump without entries touches no event."""


class FullDumpRefusedError(Exception):
    """A dump with entries could crash this process."""


class Recorder(Protocol):
    """One source of records. Reporter thread only, because torch holds the interpreter's lock during each call."""

    @property
    def source(self) -> "common.RecorderSource":
        """Kind of the recorder."""

    @property
    def backend(self) -> str:
        """Name of the backend whose calls it records, e.g. ``nccl``."""

    @property
    def full_dumps(self) -> bool:
        """Whether :meth:`entries` is safe while the rank runs."""

    def status(self) -> Status:
        """Return the newest numbers of each group. Takes microseconds. Raises RecorderUnavailableError."""

    def entries(self) -> bytes:
        """Return a full dump as JSON: 12 to 22 us an entry. Raises RecorderUnavailableError, FullDumpRefusedError."""


class GenericRecorder:
    """Torch's generic recorder. Gloo records into it."""

    source = common.RECORDER_SOURCE_GENERIC
    backend = "gloo"
    full_dumps = True

    def status(self) -> Status:
        """See :meth:`Recorder.status`."""
        return _status(self._dump()(False, False))

    def entries(self) -> bytes:
        """See :meth:`Recorder.entries`."""
        return self._dump()(True, False)

    def _dump(self) -> Dump:
        dump = find_dump()
        if dump is None:
            raise RecorderUnavailableError("this rank has no process group")
        return dump


class NcclRecorder:
    """NCCL's own recorder. Builds of torch without NCCL do not have it."""

    source = common.RECORDER_SOURCE_NCCL
    backend = "nccl"

    @property
    def full_dumps(self) -> bool:
        """See :data:`_SAFE_NCCL_DUMPS`."""
        return torch_version() >= _SAFE_NCCL_DUMPS

    def status(self) -> Status:
        """See :meth:`Recorder.status`. Ask only when :class:`~.quiet.QuietWatch` allows it."""
        return _status(self._dump()(False, False))

    def entries(self) -> bytes:
        """See :meth:`Recorder.entries`."""
        dump = self._dump()
        if not self.full_dumps:
            raise FullDumpRefusedError(
                f"a full dump of NCCL's recorder can crash a rank on torch {'.'.join(map(str, torch_version()))}:"
                " use torch 2.14 or later"
            )
        return dump(True, False)

    def _dump(self) -> Dump:
        dump: Dump | None = getattr(_bindings(), "_dump_nccl_trace_json", None)
        if dump is None:
            raise RecorderUnavailableError("this build of torch has no NCCL recorder: use a CUDA build with NCCL")
        return dump


class BackendRecorder:
    """The generic recorder of one backend alone, such as nccl2. Torch has these from 2.15 on."""

    source = common.RECORDER_SOURCE_BACKEND
    full_dumps = True  # its entries hold no CUDA events

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def status(self) -> Status:
        """See :meth:`Recorder.status`. Ask only when :class:`~.quiet.QuietWatch` allows it."""
        return _status(self._dump(collectives=False))

    def entries(self) -> bytes:
        """See :meth:`Recorder.entries`."""
        return self._dump(collectives=True)

    def _dump(self, *, collectives: bool) -> bytes:
        if not has_backend_recorders():
            raise RecorderUnavailableError(f"no recorder for backend {self.backend}")
        dump = _bindings()._dump_fr_trace_json
        data: bytes = dump(collectives, False, backend=self.backend)
        return data


def has_backend_recorders() -> bool:
    """Whether this torch keeps a recorder for each backend: its dump takes the keyword ``backend``."""
    dump = getattr(_bindings(), "_dump_fr_trace_json", None)
    # A builtin function has no signature for inspect. Pybind writes it into the first line of the docstring.
    return "backend:" in (getattr(dump, "__doc__", None) or "").partition("\n")[0]


def torch_version() -> tuple[int, int]:
    """Return major and minor version of the imported torch; (0, 0) if it is unreadable."""
    found = re.match(r"(\d+)\.(\d+)", str(getattr(sys.modules.get("torch"), "__version__", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _bindings() -> Any:  # noqa: ANN401  a module without a stub for these names
    return getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)


def _status(dump: bytes) -> Status:
    status = json.loads(dump).get("pg_status")
    return status if isinstance(status, dict) else {}
