"""Tells whether the kernel has killed a rank to free memory."""

import logging
import signal
from pathlib import Path

from holdfast_agent import cgroup
from holdfast_agent.kernel_log import KernelLog, victim_of
from holdfast_proto.v1.store_pb2 import RankExit

log = logging.getLogger(__name__)

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the kernel. In any other namespace the kernel's log speaks of pids that are not ours."""

_VICTIMS_KEPT = 256


class MemoryKills:
    """Asks the kernel's log; where that may not be read or knows other pids, the count of our own cgroup."""

    def __init__(self, kernel_log: KernelLog | None, events: Path | None) -> None:
        self._log = kernel_log
        self._events = events
        self._victims: dict[int, str] = {}
        """Pid -> what the kernel said when it killed it."""
        self._count = self._read_count()
        self._unclaimed = 0
        """Kills that the cgroup has counted and no rank's end is explained by."""

    @classmethod
    def of_this_machine(cls) -> "MemoryKills":
        """Return a watch that begins now."""
        events = cgroup.memory_events()
        if Path("/proc/self/ns/pid").stat().st_ino != _INITIAL_PID_NAMESPACE:
            return cls(None, events)
        try:
            return cls(KernelLog(), events)
        except OSError as error:
            log.info("the kernel's log cannot be read: %s", error)
            return cls(None, events)

    def explain(self, pid: int, ended: RankExit) -> None:
        """Say in ``ended`` whether memory was the reason. To be called for the end of every rank, at once."""
        unknown = not (ended.HasField("signal") or ended.HasField("code"))
        line = self._logged(pid) if self._log else self._counted()
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

    def _counted(self) -> str:
        """Every end claims one of the kills counted since: a rank may also have failed because a worker was killed."""
        before, self._count = self._count, self._read_count()
        self._unclaimed += max(0, self._count - before)
        if not self._unclaimed:
            return ""
        self._unclaimed -= 1
        return f"{self._events}: oom_kill {self._count}"

    def _read_count(self) -> int:
        try:
            return cgroup.oom_kills(self._events.read_text()) if self._events else 0
        except OSError:
            return 0
