"""Polls the recorders of the groups on devices: the numbers as they are, never mixed with gloo's.

NCCL writes the numbers of collectives and of point-to-point calls into the same fields, whichever came last. So they
show that something moves, and not which call a rank is in. Full dumps show that.
"""

import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress.group_making import is_making_groups
from holdfast_hooks.progress.recorders.groups import TORCHCOMMS, DeviceGroup, DeviceGroups
from holdfast_hooks.progress.recorders.recorder import (
    BackendRecorder,
    GenericRecorder,
    NcclRecorder,
    Recorder,
    RecorderUnavailableError,
    has_backend_recorders,
)
from holdfast_proto.v1 import common_pb2 as common

# Finds the moments in which a device recorder's status may be read.
#
# The recorder guards its entries with a lock, but not the tables of groups that a status is made from
# (FlightRecorderDetail.hpp: ``getPgConfigJson`` and ``getPgStatusJson`` of torch 2.13 to 2.15). A row is added to
# them at two moments only: when a communicator is made, and at the first record of a group. A status that is read at
# that moment may crash the process. So the hooks read none
#
# * while a thread is inside the functions that make groups;
# * while a rank's first point-to-point call on a device with a peer has not returned: it may make a communicator;
# * while a group's first collective may not have returned. The group's own counter shows that: torch counts a call
#   before it makes the communicator, and the second call shows that the first one has returned. Where there is no
#   second call, the training thread must have moved to another step or phase.
#
# A call that begins after this look cannot add a row during the read. A communicator takes milliseconds to make, a read
# takes microseconds. A record first takes a stack with the interpreter's lock, which the read holds. A first collective
# of a thread other than the training thread is the exception: nothing shows that it has not returned.


class QuietWatch:
    """Follows the first calls of each group. Reporter thread only.

    Args:
        place: returns a value that changes when the training thread moves to another step or phase.
        opening: point-to-point calls of a kind that may make a communicator, and have not returned.
    """

    def __init__(self, place: Callable[[], Hashable], opening: Collection[object]) -> None:
        self._place = place
        self._opening = opening
        self._since: dict[str, Hashable] = {}

    def is_quiet(self, calls: Mapping[str, int | None]) -> bool:
        """Return whether a status may be read now.

        ``calls``: name of each group on a device -> collectives that it has counted; None: the backend does not say.
        """
        place = self._place()
        doubtful = {name for name, count in calls.items() if count is None or count == 1}
        self._since = {name: self._since.get(name, place) for name in doubtful}
        is_settled = all(since != place for since in self._since.values())
        return is_settled and not self._opening and not is_making_groups()


_EMPTY_POLLS = 25
"""Polls after which a recorder that shows no group, although calls were made, is reported as switched off."""

_CALLS = 8
"""Collectives of a group after which its recorder should know it."""

_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables with the size of the recorder in entries. The first that is set counts."""

_Key = tuple["common.RecorderSource", str]
"""Source and backend."""


class DevicePoll:
    """Polls the status of each recorder in use. Reporter thread only.

    Args:
        place: see :class:`QuietWatch`.
        opening: likewise.
        has_gloo: returns whether a gloo group is known.
    """

    def __init__(
        self,
        place: Callable[[], Hashable],
        opening: Collection[object],
        once: OnceLog,
        *,
        has_gloo: Callable[[], bool],
    ) -> None:
        self._groups = DeviceGroups()
        self._quiet = QuietWatch(place, opening)
        self._once = once
        self._has_gloo = has_gloo
        self._found: dict[DeviceGroup, int | None] = {}
        self._numbers: dict[_Key, dict[str, tuple[int, int, int]]] = {}
        """By recorder and group id: newest enqueued, started and completed number. Kept while none can be read."""
        self._matched: set[tuple[_Key, str]] = set()
        """Ids that have had a group. A recorder also keeps the ids of groups that are gone."""
        self._empty_polls = 0
        self.failures_total = 0

    @property
    def has_groups(self) -> bool:
        """Whether the rank has a group on a device."""
        return bool(self._found)

    def poll(self) -> list[common.GroupProgress]:
        """Return the newest known numbers of every group on a device; nothing if torch is not as expected."""
        try:
            self._found = self._groups.read()
        except (AttributeError, RuntimeError, ValueError, TypeError, LookupError) as error:
            self.failures_total += 1
            self._once.warn("groups on devices are not followed: this torch is not as expected", error)
            return []
        if not self._found:
            return []
        if self._quiet.is_quiet({group.name: count for group, count in self._found.items()}):
            for recorder in self._device_recorders():
                self._read(recorder)
        self._warn()
        return [*self._progress()]

    def recorders(self) -> list[Recorder]:
        """Return the recorders in use."""
        generic: list[Recorder] = [GenericRecorder()] if self._has_gloo() else []
        return [*generic, *self._device_recorders()]

    def described(self) -> list[common.Recorder]:
        """Return the recorders in use, and the backends without one, for a report."""
        missing = {group.backend for group in self._found if group.source == common.RECORDER_SOURCE_NONE}
        used = [
            common.Recorder(source=one.source, backend=one.backend, full_dumps=one.full_dumps)
            for one in self.recorders()
        ]
        none = common.RECORDER_SOURCE_NONE
        return [*used, *(common.Recorder(source=none, backend=name) for name in sorted(missing))]

    def _device_recorders(self) -> Iterator[Recorder]:
        if any(group.source == common.RECORDER_SOURCE_NCCL for group in self._found):
            yield NcclRecorder()
        backends = {group.backend for group in self._found if group.source == common.RECORDER_SOURCE_BACKEND}
        yield from map(BackendRecorder, sorted(backends))

    def _read(self, recorder: Recorder) -> None:
        try:
            status = recorder.status()
            self._numbers[recorder.source, recorder.backend] = {key: _numbers(one) for key, one in status.items()}
        except (RecorderUnavailableError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            self.failures_total += 1
            self._once.warn(f"progress of {recorder.backend} groups is not reported", error)

    def _progress(self) -> Iterator[common.GroupProgress]:
        for (source, backend), numbers in self._numbers.items():
            groups = [group for group in self._found if (group.source, _file(group)) == (source, backend)]
            by_id = _by_id(groups, numbers)
            self._matched.update(((source, backend), key) for key in by_id)
            for key, (enqueued, started, completed) in sorted(numbers.items()):
                group = by_id.get(key)
                if group is None and ((source, backend), key) in self._matched:
                    continue
                yield common.GroupProgress(
                    group=group.name if group else "",
                    member_runs=group.member_runs if group else (),
                    description=group.description if group else f"unknown group {key} of {backend}",
                    enqueued=enqueued,
                    started=started,
                    completed=completed,
                    source=source,
                )

    def _warn(self) -> None:
        """Say once which setting to change if nothing records the calls of groups on devices."""
        for group in self._found:
            if group.source == common.RECORDER_SOURCE_NONE:
                self._once.warn(
                    f"no recorder for backend {group.backend}: its hangs have no call", _advice(group.backend)
                )
        size = next((value for name in _SIZES if (value := os.environ.get(name))), "")
        is_used = any(
            group.source == common.RECORDER_SOURCE_NCCL and (count or 0) >= _CALLS
            for group, count in self._found.items()
        )
        is_empty = not self._numbers.get((common.RECORDER_SOURCE_NCCL, NcclRecorder.backend), True)
        self._empty_polls = self._empty_polls + 1 if is_used and is_empty else 0
        if self._empty_polls == _EMPTY_POLLS:
            detail = f"it is {size}" if size else "another library may have set the size to 0"
            failure = "NCCL's recorder has no calls, so hangs have no call: set TORCH_FR_BUFFER_SIZE=2000 for the ranks"
            self._once.warn(failure, detail)


def _advice(backend: str) -> str:
    if backend.startswith(TORCHCOMMS):
        return (
            "a dump of TorchComms' own recorder can crash a rank, and shows no pending call:"
            " unset TORCH_DISTRIBUTED_USE_TORCHCOMMS, and leave torch.distributed.config.use_torchcomms False"
        )
    if has_backend_recorders():  # torch attaches its hook to every group, unless the size is 0
        return "set TORCH_FR_BUFFER_SIZE=2000 for the ranks before they start"
    if not backend.startswith("nccl"):
        return "torch's Flight Recorder does not know it before torch 2.15"
    return "set TORCH_DIST_USE_NCCL2=0 and use backend nccl, or use torch 2.15 or later"


def _file(group: DeviceGroup) -> str:
    """Return the name of the recorder into which a group's backend records."""
    return NcclRecorder.backend if group.source == common.RECORDER_SOURCE_NCCL else group.backend


def _by_id(groups: list[DeviceGroup], numbers: Mapping[str, object]) -> dict[str, DeviceGroup]:
    found = {group.recorder_id: group for group in groups if group.recorder_id is not None}
    # Only entries show the names of other ids, and those are for suspicions.
    if not found and len(groups) == len(numbers) == 1:
        return dict.fromkeys(numbers, groups[0])
    return {key: group for key, group in found.items() if key in numbers}


def _numbers(status: Mapping[str, str]) -> tuple[int, int, int]:
    """Return enqueued, started and completed; torch writes -1 for never."""
    enqueued, started, completed = (
        max(0, int(status[f"last_{moment}_collective"])) for moment in ("enqueued", "started", "completed")
    )
    return enqueued, started, completed
