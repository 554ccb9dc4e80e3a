"""Builds a rank's reports from what the training thread has left in bounded queues. Reporter thread only."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast_hooks.device_time.device_time import DeviceTime
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress.device_poll import DevicePoll
from holdfast_hooks.progress.group_making import groups_being_made, watch_makers
from holdfast_hooks.progress.own_wait import OwnWait
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_hooks.progress.progress_poll import ProgressPoll
from holdfast_hooks.session.own_worker_server import WorkerServer
from holdfast_hooks.telemetry.bad_gradients import NUMBERS
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_hooks.telemetry.device_memory import RankMemory
from holdfast_hooks.telemetry.logged_numbers import LoggedNumbers
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_hooks.telemetry.timeline import RecordPart, StepSample, Timeline
from holdfast_proto.v1.common_pb2 import ChannelProgress, GroupProgress, Progress
from holdfast_proto.v1.session_pb2 import MemoryStatus, Report, SnapshotTaken, StepRecord

Item = TypeVar("Item")


class Backlog(Generic[Item]):
    """A bounded queue from one thread, mostly the training thread, to the reporter. If full, it drops the oldest item.

    It needs no lock: each operation on the deque is atomic, and only the thread that appends counts dropped items.
    """

    def __init__(self, capacity: int) -> None:
        self._items: deque[Item] = deque()
        self._capacity = capacity
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        """Add an item (from one thread only)."""
        if len(self._items) >= self._capacity:
            self._drop_oldest()
        self._items.append(item)

    def pop(self) -> Item | None:
        """Remove and return the oldest item, or None (reporter thread)."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def _drop_oldest(self) -> None:
        # None if the reporter has taken everything since the length was read. Then nothing is lost.
        if self.pop() is not None:
            self.dropped_total += 1


STEPS_PER_REPORT = 512
_SETTLED_AFTER_STEPS = 2

_TYPES: dict[str, Callable[[Any], int]] = {"overflow": bool, "dropped_tokens": int}
"""Conversion of the fields of StepRecord that are not floats. The loop's values are, because they may be from a GPU."""


@dataclass(kw_only=True)
class Sources:
    """Sources of a report's parts."""

    timeline: Timeline
    progress: ProgressPoll
    devices: DevicePoll
    worker_server: WorkerServer
    point_to_point: PointToPointRecord
    device: OwnDevice
    device_time: DeviceTime
    steps: Backlog[StepSample]
    logged: LoggedNumbers
    snapshots: tuple[Backlog[SnapshotTaken], ...]
    """A backlog for each thread that completes snapshots."""
    snapshots_skipped_total: int = 0
    """Number of skipped snapshots, which the training thread counts."""
    training_thread: int = 0
    """Number of the thread that has begun the first step, as the kernel shows it; 0: none has."""
    steps_until: int = 0
    """Number after the last step of the training loop; 0: no loop has begun."""
    last_words: str | None = field(default=None)
    on_bad_number: Callable[[], None] = lambda: None
    """Called when a loss or gradient norm that a GPU owed is not finite."""
    on_wanted_device: Callable[[], None] = lambda: None
    """Called when only the training thread can tell the rank's device."""


class NewModules:
    """Finds the modules that the first steps import, once: the next generation's warm parent imports them ahead."""

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._told = False

    def after(self, completed_steps: int) -> list[str]:
        """Return the names of the new modules after the second completed step, once; else nothing.

        They are parts of packages that were imported before, and of torch. Anything else is the user's own code, whose
        import may have side effects.
        """
        if self._told or completed_steps < _SETTLED_AFTER_STEPS:
            return []
        self._told = True
        # A copy first, because another thread may be importing right now.
        return sorted(name for name in list(sys.modules) if name not in self._before and self._is_known(name))

    def _is_known(self, name: str) -> bool:
        package = name.partition(".")[0]
        return package == "torch" or package in self._before


class ReportBuilder:
    """Builds reports from the sources. Each finished step and snapshot goes into exactly one report."""

    def __init__(self, sources: Sources, once: OnceLog) -> None:
        self._sources = sources
        self._once = once
        self._groups: list[GroupProgress] = []
        self._device_groups: list[GroupProgress] = []
        self._channels: list[ChannelProgress] = []
        self._completed_steps = 0
        self._held: StepSample | None = None
        self._modules = NewModules()
        self._own_wait = OwnWait(sources.timeline, once)
        self._memory_of = RankMemory(sources.device)
        watch_makers()

    @property
    def has_more(self) -> bool:
        """Whether steps are left that did not fit into the last report."""
        return self._held is None and len(self._sources.steps) > 0

    def poll(self) -> None:
        """Poll the progress of every group and channel. The black box gets it with or without an agent."""
        progress = self._sources.progress
        if self._sources.training_thread:
            self._own_wait.follow(self._sources.training_thread)
        self._own_wait.before()
        self._groups = progress.poll(last=self._sources.last_words is not None)
        known = {group.group for group in self._groups}
        watch_makers()  # a script may import torch after it has attached
        self._groups += [group for group in groups_being_made() if group.group not in known]
        self._device_groups = self._sources.devices.poll()
        if self._sources.devices.has_groups:
            self._sources.worker_server.start()
        self._channels = self._sources.point_to_point.advance()
        self._own_wait.after(is_call_pending=self._is_call_pending())
        self._sources.device_time.read()

    def _is_call_pending(self) -> bool | None:
        """Whether the newest poll saw a call that has not completed; None: it saw no group, or not all of them."""
        messages = any(channel.enqueued > channel.completed for channel in self._channels)
        if messages or any(group.enqueued > group.completed for group in self._groups):
            return True
        if self._sources.devices.has_groups:
            return None  # the numbers of a device's recorder do not show it
        return False if self._groups and self._sources.progress.no_call_pending else None

    def report(self, *, final: bool = False) -> Report:
        """Return a report of everything new. The ``final`` one leaves out numbers that a GPU still owes."""
        sources = self._sources
        steps = self._take_steps(final=final)
        self._look_at_device()
        source, reason = sources.device_time.source(sources.device.name, stepped=self._completed_steps > 0)
        return Report(
            progress=self._progress(),
            steps=steps,
            snapshots=self._take_snapshots(),
            memory=self._memory(),
            dropped_total=sources.steps.dropped_total + sum(backlog.dropped_total for backlog in sources.snapshots),
            snapshots_skipped_total=sources.snapshots_skipped_total,
            reporter_cpu_s=time.thread_time(),
            modules=self._modules.after(self._completed_steps),
            last_words=sources.last_words,
            recorder_failures_total=sources.progress.failures_total + sources.devices.failures_total,
            recorder_attempts_total=sources.progress.attempts_total,
            pending=sources.progress.pending.calls,
            outside_s=sources.timeline.outside_s(),
            device=sources.device.name,
            device_uuid=self._device_uuid(),
            own_wait_s=self._own_wait.total_s,
            call_wait_s=self._own_wait.in_calls_s,
            device_own_s=sources.device_time.own_s,
            device_steps=sources.device_time.steps,
            own_time_source=source,
            own_time_reason=reason,
            steps_until=sources.steps_until if final else 0,
            planned_steps=sources.steps_until,
            recorders=sources.devices.described(),
            worker_socket=sources.worker_server.path,
            training_thread=sources.training_thread,
            logged=sources.logged.take(),
        )

    def _progress(self) -> Progress:
        timeline = self._sources.timeline
        return Progress(
            step=timeline.step,
            phase=timeline.phase,  # type: ignore[arg-type]
            groups=self._groups,
            channels=self._channels,
            device_groups=self._device_groups,
        )

    def _take_steps(self, *, final: bool) -> list[StepRecord]:
        records: list[StepRecord] = []
        while len(records) < STEPS_PER_REPORT:
            sample, self._held = self._held or self._sources.steps.pop(), None
            if sample is None:
                break
            record = self._record(sample, final=final)
            if record is None:
                self._held = sample
                break
            records.append(record)
        self._completed_steps += len(records)
        return records

    def _record(self, sample: StepSample, *, final: bool) -> StepRecord | None:
        """Return the record of a step, or None while a GPU still owes one of its numbers."""
        step, ended_unix_ns, duration_ns, phase_ns, values = sample
        record = StepRecord(
            step=step,
            ended_unix_s=ended_unix_ns / 1e9,
            duration_s=duration_ns / 1e9,
            phase_s={phase: spent_ns / 1e9 for phase, spent_ns in enumerate(phase_ns) if spent_ns},
        )
        # A copy, because a script may report a number after the end of its step.
        for name, value in values.copy().items():
            if not self._put(record, name, value) and not final:
                return None
        return record

    def _put(self, record: StepRecord, name: str, value: float | bytes | DeferredNumbers | RecordPart) -> bool:
        """Put a value into the record; return False while a GPU still owes it."""
        if isinstance(value, DeferredNumbers):
            numbers = value.read()
            if numbers is None:
                return False
            value = float(numbers[0])
            if name in NUMBERS and not math.isfinite(value):
                self._sources.on_bad_number()
        elif not isinstance(value, (int, float, bytes)):
            return value.put(record)
        try:
            convert = _TYPES.get(name)
            setattr(record, name, convert(value) if convert else value)
        except (ValueError, OverflowError) as error:  # a count that is negative or not a number
            self._once.warn(f"{name} is not reported", error)
        return True

    def _take_snapshots(self) -> list[SnapshotTaken]:
        taken = []
        for backlog in self._sources.snapshots:
            while (snapshot := backlog.pop()) is not None:
                taken.append(snapshot)
        return taken

    def _look_at_device(self) -> None:
        device = self._sources.device
        try:
            device.look(stepped=self._completed_steps > 0)
        except Exception as error:  # noqa: BLE001 - whatever torch raises, the report must go out
            self._once.warn("the device of this rank is not known", repr(error))
        if device.wants_current:
            self._sources.on_wanted_device()

    def _device_uuid(self) -> str:
        try:
            return self._memory_of.uuid()
        except Exception as error:  # noqa: BLE001 - as above: torch asserts that it knows the device
            self._once.warn("the UUID of the GPU is not reported", repr(error))
            return ""

    def _memory(self) -> MemoryStatus | None:
        try:
            return self._memory_of.status()
        except Exception as error:  # noqa: BLE001 - as above
            self._once.warn("the memory in use is not reported", repr(error))
            return None
