"""Finds out whether the kernel has killed a rank to free memory."""

import logging
import signal
from pathlib import Path

from holdfast_agent.processes import cgroup
from holdfast_agent.processes.cgroup import KillCount
from holdfast_agent.processes.kernel_log import KernelLog, names_our_pids, victim_of
from holdfast_base import processes
from holdfast_proto.v1.store_pb2 import RankExit

log = logging.getLogger(__name__)

_VICTIMS_KEPT = 256


class MemoryKills:
    """Searches the kernel's log or, if that is forbidden or names other pids, the kill count of the rank's cgroup."""

    def __init__(self, kernel_log: KernelLog | None, events: Path | None) -> None:
        """``events``: file from ``cgroup.memory_events``, for ranks without a cgroup of their own."""
        self._log = kernel_log
        self._events = events
        self._events_of: dict[int, Path] = {}
        """Pid -> the file of its cgroup, as last noted."""
        self._counts = {events: KillCount(events)} if events is not None else {}
        self._victims: dict[int, str] = {}
        """Pid -> the kernel's message about killing it."""

    @classmethod
    def of_this_machine(cls) -> "MemoryKills":
        """Return an object that finds kills from now on."""
        events = cgroup.memory_events()
        try:
            return cls(KernelLog() if names_our_pids() else None, events)
        except OSError as error:
            log.info("the kernel's log cannot be read: %s", error)
            return cls(None, events)

    def note(self, pid: int) -> None:
        """Note the cgroup of a live process: a scheduler may have moved it into one of its own."""
        events = cgroup.memory_events(pid)
        if events is not None and processes.process_state(pid) not in (
            "",
            "Z",
            "X",
        ):  # cgroup v1 shows dead processes at its root
            self._events_of[pid] = events
            if events not in self._counts:
                self._counts[events] = KillCount(events)

    def explain(self, pid: int, ended: RankExit) -> None:
        """Add to ``ended`` whether memory was the reason. Call this for every rank, as soon as its end is seen."""
        unknown = not (ended.HasField("signal") or ended.HasField("code"))
        events = self._events_of.pop(pid, self._events)
        line = self._logged(pid) if self._log else self._counted(events)
        if line and (ended.signal == signal.SIGKILL or (unknown and self._log)):
            ended.signal = signal.SIGKILL
            ended.out_of_memory = True
            ended.kernel_line = line

    def _logged(self, pid: int) -> str:
        assert self._log is not None
        try:
            for message in self._log.new_messages():
                victim = victim_of(message)
                if victim is not None:
                    self._victims[victim] = message
        except OSError as error:
            log.warning("the kernel's log can no longer be read: %s", error)
            self._log.close()
            self._log = None
        while len(self._victims) > _VICTIMS_KEPT:
            del self._victims[next(iter(self._victims))]
        return self._victims.pop(pid, "")

    def _counted(self, events: Path | None) -> str:
        """Claim one of the counted kills. Every end claims one: the kill of a worker may have ended the rank."""
        return self._counts[events].claim() if events is not None else ""
