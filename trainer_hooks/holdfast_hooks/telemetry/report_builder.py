"""Putting a Report together from what the training thread left behind. Reporter thread only."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast_hooks.once import OnceLog
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_hooks.progress.progress_poll import ProgressPoll
from holdfast_hooks.telemetry.backlog import Backlog
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_hooks.telemetry.device_memory import DeviceMemory
from holdfast_hooks.telemetry.timeline import RecordPart, StepSample, Timeline
from holdfast_proto.v1.common_pb2 import ChannelProgress, GroupProgress, Progress
from holdfast_proto.v1.session_pb2 import MemoryStatus, Report, SnapshotTaken, StepRecord

STEPS_PER_REPORT = 512
_SETTLED_AFTER_STEPS = 2

_TYPES: dict[str, Callable[[Any], int]] = {"overflow": bool, "dropped_tokens": int}
"""Of the fields that are no float: what a loop reports comes as one, because it may come from a GPU."""


@dataclass(kw_only=True)
class Sources:
    """Where a report's parts come from."""

    timeline: Timeline
    progress: ProgressPoll
    point_to_point: PointToPointRecord
    device_memory: DeviceMemory
    steps: Backlog[StepSample]
    snapshots: tuple[Backlog[SnapshotTaken], ...]
    """One from each thread that completes some."""
    snapshots_skipped_total: int = 0
    """Counted by the training thread."""
    last_words: str | None = field(default=None)


class NewModules:
    """Finds the modules that the first steps import, once: the next generation's warm parent imports them ahead."""

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._told = False

    def after(self, completed_steps: int) -> list[str]:
        """Return the new modules' names the first time that enough steps are complete, else nothing.

        Only parts of packages that were there before, and of torch: anything else is the user's own code,
        whose import may have side effects.
        """
        if self._told or completed_steps < _SETTLED_AFTER_STEPS:
            return []
        self._told = True
        # list() first: another thread may be importing right now.
        return sorted(name for name in list(sys.modules) if name not in self._before and self._is_known(name))

    def _is_known(self, name: str) -> bool:
        package = name.partition(".")[0]
        return package == "torch" or package in self._before


class ReportBuilder:
    """Makes reports; each finished step and snapshot goes into exactly one."""

    def __init__(self, sources: Sources, once: OnceLog) -> None:
        self._sources = sources
        self._once = once
        self._groups: list[GroupProgress] = []
        self._channels: list[ChannelProgress] = []
        self._completed_steps = 0
        self._held: StepSample | None = None
        self._modules = NewModules()

    @property
    def has_more(self) -> bool:
        """Whether a full report left steps behind."""
        return self._held is None and len(self._sources.steps) > 0

    def poll(self) -> None:
        """Look how far every group and channel is; the black box learns it with or without an agent."""
        self._groups = self._sources.progress.poll(last=self._sources.last_words is not None)
        self._channels = self._sources.point_to_point.advance()

    def report(self, *, final: bool = False) -> Report:
        """Return what is new. The ``final`` one does not wait for numbers that a GPU still owes."""
        sources = self._sources
        steps = self._take_steps(final=final)
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
            recorder_failures_total=sources.progress.failures_total,
            recorder_attempts_total=sources.progress.attempts_total,
            pending=sources.progress.pending.calls,
        )

    def _progress(self) -> Progress:
        timeline = self._sources.timeline
        return Progress(
            step=timeline.step,
            phase=timeline.phase,  # type: ignore[arg-type]
            groups=self._groups,
            channels=self._channels,
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
        """Return the record of a step, or None if one of its numbers has not arrived yet."""
        step, ended_unix_ns, duration_ns, phase_ns, values = sample
        record = StepRecord(
            step=step,
            ended_unix_s=ended_unix_ns / 1e9,
            duration_s=duration_ns / 1e9,
            phase_s={phase: spent_ns / 1e9 for phase, spent_ns in enumerate(phase_ns) if spent_ns},
        )
        for name, value in values.items():
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
        elif not isinstance(value, (int, float, bytes)):
            return value.put(record)
        try:
            convert = _TYPES.get(name)
            setattr(record, name, convert(value) if convert else value)
        except (ValueError, OverflowError) as error:  # a count that is negative or no number
            self._once.warn(f"{name} is not reported", error)
        return True

    def _take_snapshots(self) -> list[SnapshotTaken]:
        taken = []
        for backlog in self._sources.snapshots:
            while (snapshot := backlog.pop()) is not None:
                taken.append(snapshot)
        return taken

    def _memory(self) -> MemoryStatus | None:
        try:
            return self._sources.device_memory.status()
        except (OSError, RuntimeError, ValueError) as error:
            self._once.warn("memory in use is not available", error)
            return None
