"""Tells from two samples of a process tree whether anything in it has moved.

Measured on a rank that truly hangs (gloo, hooks that report five times a second, a data loader): none of its threads
computes for more than 4.5 ms a second, none reads or writes a byte, and no socket moves but those to the rendezvous
store.
"""

from holdfast_agent.movement.process_table import TICKS_PER_S
from holdfast_agent.movement.tcp_counters import TcpSocket
from holdfast_agent.movement.tree_sample import ProcessSample, TreeSample

CPU = "cpu"
DISK = "disk"
NETWORK = "network"
PROCESSES = "processes"

CPU_SHARE = 0.015
"""A thread that computes more than this share of the time moves. gloo's thread that polls a hundred times a second
needs 0.0036, the hooks' reporter 0.0044."""

_TRAINING_SHARE, _TRAINING_WAKE_S = 1e-4, 2e-4
"""The training thread of a rank that hangs is in one system call and computes nothing. It moves if it computes more
than this share of the time, over 0.2 ms for what interrupts it. One that tries to reach a server and sleeps for half a
second, again and again, needs 5e-4. torch's data loader, which looks after its workers every 5 s, needs 2e-5."""

LONGEST_WINDOW_S = 10.0
"""What was computed in a longer one counts as if this agent had not been held up: it may have been suspended."""

_WAKE_UP_BYTES = 8
"""An eventfd or a timerfd: a read or a write of so little only wakes a thread."""

_LOG_BYTES = 256
"""A progress bar draws itself once more when nothing has moved for ten seconds. More is work."""

_HANDSHAKE_BYTES = 1
"""What the kernel counts for a connection over which nothing was sent."""

_ROUNDING_S = 2 / TICKS_PER_S
"""The kernel rounds user and system time of a process to its tick."""


def moved(before: TreeSample, after: TreeSample, *, since: TreeSample | None = None) -> str:
    """Return what has moved between two samples: CPU, DISK, NETWORK or PROCESSES; empty: nothing.

    ``since``: the sample from which on nothing has moved yet, if it is older. Few bytes count if there are more and
    more of them.
    """
    pairs = [(before.processes[each], after.processes[each]) for each in before.processes.keys() & after.processes]
    least_s = CPU_SHARE * min(after.at_s - before.at_s, LONGEST_WINDOW_S)
    if any(_has_computed(old, new, least_s) for old, new in pairs) or _is_elsewhere(before.call, after.call):
        return CPU
    if _trains(since if since is not None else before, after):
        return CPU
    older = since.processes if since is not None else before.processes
    longer = [(older[each], after.processes[each]) for each in older.keys() & after.processes]
    if any(_has_transferred(old, new) or _has_faulted(old, new) for old, new in [*pairs, *longer]):
        return DISK
    if any(_has_flowed(before.sockets.get(inode), new) for inode, new in after.sockets.items()):
        return NETWORK
    if before.processes.keys() != after.processes.keys() or any(_has_changed(old, new) for old, new in pairs):
        return PROCESSES
    return ""


def _trains(old: TreeSample, new: TreeSample) -> bool:
    """Whether the training thread has computed more than one that hangs."""
    return new.training_s - old.training_s > _TRAINING_WAKE_S + _TRAINING_SHARE * (new.at_s - old.at_s)


def _has_computed(old: ProcessSample, new: ProcessSample, least_s: float) -> bool:
    """Whether one of its threads has, or those that have begun and ended in between."""
    spent_s = {
        tid: thread.ran_s - (old.threads[tid].ran_s if tid in old.threads else 0.0)
        for tid, thread in new.threads.items()
    }
    if any(each_s > least_s for tid, each_s in spent_s.items() if not new.threads[tid].is_background):
        return True
    ended_s = new.stat.cpu_s - old.stat.cpu_s - sum(spent_s.values())
    return ended_s > least_s + _ROUNDING_S


def _is_elsewhere(old: str, new: str) -> bool:
    return bool(old) and bool(new) and old != new


def _has_transferred(old: ProcessSample, new: ProcessSample) -> bool:
    """Whether more was read or written than wakes threads (at most eight bytes a call) and than a line of a log."""
    io = new.io.minus(old.io)
    read, written = io.read_bytes - _WAKE_UP_BYTES * io.reads, io.written_bytes - _WAKE_UP_BYTES * io.writes
    return io.disk_bytes > 0 or max(read, written) > _LOG_BYTES


def _has_faulted(old: ProcessSample, new: ProcessSample) -> bool:
    return new.stat.major_faults > old.stat.major_faults


def _has_flowed(old: TcpSocket | None, new: TcpSocket) -> bool:
    """Whether bytes have arrived, were acknowledged, or have entered or left a queue."""
    if old is None:
        return new.received > _HANDSHAKE_BYTES or new.acknowledged > _HANDSHAKE_BYTES
    return _counters(old) != _counters(new)


def _counters(each: TcpSocket) -> tuple[int, int, int, int]:
    return each.received, each.acknowledged, each.receive_queue, each.send_queue


def _has_changed(old: ProcessSample, new: ProcessSample) -> bool:
    """Whether it has waited for a child that ended, was stopped, or continues."""
    was_stopped, is_stopped = old.stat.state == "T", new.stat.state == "T"
    return new.stat.children_ended != old.stat.children_ended or was_stopped != is_stopped
