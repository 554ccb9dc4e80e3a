"""The counters of all processes in a rank's process tree at one moment, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast_agent.movement.process_table import Process, ProcessStat
from holdfast_agent.movement.tcp_counters import TcpSocket
from holdfast_proto.rank_context import THREAD_PREFIX
from holdfast_proto.v1.store_pb2 import LostWorker

_BACKGROUND = (THREAD_PREFIX, "pt_tcpstore", "pt_nccl_watchdg", "pt_nccl_heartbt", "pt_workerserver")
"""Beginnings of the names of background threads: the hooks' own, torch's rendezvous store, its NCCL watchdogs, and its
worker server, which works when the agent asks it."""


@dataclass(frozen=True, slots=True)
class ThreadSample:
    """One thread."""

    ran_s: float
    """CPU seconds so far."""
    turns: int | None
    """Number of times that it has got a core; None if the kernel does not count."""
    name: str
    tracer: int
    """Pid of the process that traces it; 0: none."""

    @property
    def is_background(self) -> bool:
        """Whether it does no work of the rank, judged by its name."""
        return self.name.startswith(_BACKGROUND)


@dataclass(frozen=True, slots=True)
class IoCounters:
    """Bytes and calls so far, as counted in /proc/PID/io."""

    read_bytes: int = 0
    """Bytes read by read() and similar calls from any kind of file."""
    written_bytes: int = 0
    reads: int = 0
    """System calls, failed ones included."""
    writes: int = 0
    disk_bytes: int = 0
    """Bytes that came from a disk, also into mapped memory."""

    def plus(self, other: "IoCounters", sign: int = 1) -> "IoCounters":
        """Return the sum."""
        return IoCounters(
            self.read_bytes + sign * other.read_bytes,
            self.written_bytes + sign * other.written_bytes,
            self.reads + sign * other.reads,
            self.writes + sign * other.writes,
            self.disk_bytes + sign * other.disk_bytes,
        )

    def minus(self, other: "IoCounters") -> "IoCounters":
        """Return the difference."""
        return self.plus(other, sign=-1)


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process of the tree."""

    stat: ProcessStat
    threads: Mapping[int, ThreadSample] = field(default_factory=dict)
    io: IoCounters = field(default_factory=IoCounters)
    """Counters of all threads except background threads; ended threads included."""
    sockets: frozenset[int] = frozenset()
    """Inodes of all its sockets, of any kind."""


@dataclass(frozen=True, slots=True)
class TreeSample:
    """A rank's process tree at one moment."""

    processes: Mapping[Process, ProcessSample]
    sockets: Mapping[int, TcpSocket]
    """TCP sockets of the tree by inode, without connections to the rendezvous store."""
    call: str
    """System call that the training thread was last seen in, with its descriptor; empty: none was seen."""
    traced: bool
    """Whether a process that this agent did not start traces the tree."""
    workers: int
    """Number of live processes that the rank has started, without helpers and stopped ones."""
    at_s: float
    """Monotonic time of the sample."""
    training_s: float = 0.0
    """CPU seconds of the training thread so far."""
    lost_worker: LostWorker | None = None
    """A worker of a data loader that has ended otherwise than normally, and that nobody has waited for; None: none."""
    turns: int = 0
    """Number of times that the training thread, and the main threads of programs that the script has started, have got
    a core; 0 if the kernel does not count."""
