"""Tells whether the kernel has killed a rank to free memory."""

import logging
import signal
from pathlib import Path

from holdfast_agent.processes import cgroup
from holdfast_agent.processes.cgroup import KillCount
from holdfast_agent.processes.kernel_log import KernelLog, victim_of
from holdfast_checkpoint import processes
from holdfast_proto.v1.store_pb2 import RankExit

log = logging.getLogger(__name__)

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the kernel. In any other namespace the kernel's log speaks of pids that are not ours."""

_VICTIMS_KEPT = 256


class MemoryKills:
    """Asks the kernel's log; where that may not be read or knows other pids, the count of the rank's cgroup."""

    def __init__(self, kernel_log: KernelLog | None, events: Path | None) -> None:
        """``events``: as of ``cgroup.memory_events``, for ranks that are in no cgroup of their own."""
        self._log = kernel_log
        self._events = events
        self._events_of: dict[int, Path] = {}
        """Pid -> the file of its cgroup, as it was last noted."""
        self._counts = {events: KillCount(events)} if events is not None else {}
        self._victims: dict[int, str] = {}
        """Pid -> what the kernel said when it killed it."""

    @classmethod
    def of_this_machine(cls) -> "MemoryKills":
        """Return a watch that begins now."""
        events = cgroup.memory_events()
        try:
            if Path("/proc/self/ns/pid").stat().st_ino != _INITIAL_PID_NAMESPACE:
                return cls(None, events)
            return cls(KernelLog(), events)
        except OSError as error:
            log.info("the kernel's log cannot be read: %s", error)
            return cls(None, events)

    def note(self, pid: int) -> None:
        """See in which cgroup a process is while it lives: a scheduler may have put it into one of its own."""
        events = cgroup.memory_events(pid)
        if events is not None and processes.process_state(pid) not in ("", "Z", "X"):  # v1 has the dead at its root
            self._events_of[pid] = events
            if events not in self._counts:
                self._counts[events] = KillCount(events)

    def explain(self, pid: int, ended: RankExit) -> None:
        """Say in ``ended`` whether memory was the reason. To be called for the end of every rank, at once."""
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
            log.warning("the kernel's log cannot be read any more: %s", error)
            self._log.close()
            self._log = None
        while len(self._victims) > _VICTIMS_KEPT:
            del self._victims[next(iter(self._victims))]
        return self._victims.pop(pid, "")

    def _counted(self, events: Path | None) -> str:
        """Every end claims one of the kills counted since: a rank may also have failed because a worker was killed."""
        return self._counts[events].claim() if events is not None else ""
