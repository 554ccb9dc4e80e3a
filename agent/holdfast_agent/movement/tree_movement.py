"""Decides from two samples of a process tree whether anything in it has moved. Does no I/O.

The limits come from measurements of a rank that truly hangs (gloo, hooks that report five times a second, a data
loader). None of its threads computes for more than 4.5 ms a second, none reads or writes a byte, and no bytes flow over
any socket except those to the rendezvous store.
"""

from holdfast_agent.movement.process_table import TICKS_PER_S
from holdfast_agent.movement.tcp_counters import TcpSocket
from holdfast_agent.movement.tree_sample import ProcessSample, TreeSample

CPU = "cpu"
DISK = "disk"
NETWORK = "network"
PROCESSES = "processes"

WAKES = "wakes"
WRITES = "writes"

CPU_SHARE = 0.015
"""A thread that computes for more than this share of the time moves. gloo's thread, which polls a hundred times a
second, needs 0.0036; the hooks' reporter needs 0.0044."""

_TRAINING_SHARE, _TRAINING_WAKE_S = 1e-4, 2e-4
"""The training thread of a rank that hangs is in one system call and computes nothing. It moves if it computes for more
than this share of the time plus 0.2 ms, which allows for interrupts. A thread that tries to reach a server every half
second needs 5e-4. torch's data loader, which checks its workers every 5 s, needs 2e-5."""

LONGEST_WINDOW_S = 10.0
"""Longest time between two samples that raises the limit on CPU time. After a longer one this agent was probably
suspended, and perhaps the rank with it."""

_WAKE_UP_BYTES = 8
"""Size of a read or write of an eventfd or a timerfd, which only wakes a thread."""

_LOG_BYTES = 256
"""Bytes that a progress bar may write when it redraws itself after ten seconds. More bytes are work."""

_HANDSHAKE_BYTES = 1
"""Bytes that the kernel counts for a connection over which nothing was sent."""

_ROUNDING_S = 2 / TICKS_PER_S
"""Rounding error of a process's CPU time: the kernel rounds user and system time to its clock tick."""


def moved(before: TreeSample, after: TreeSample, *, since: TreeSample | None = None) -> str:
    """Return the kind of movement between two samples: CPU, DISK, NETWORK or PROCESSES; empty: nothing has moved.

    ``since``: the oldest sample since which nothing has moved. Comparing with it finds slow movement, such as a few
    bytes at a time, that two successive samples do not show.
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


def sign_of_life(before: TreeSample, after: TreeSample) -> str:
    """Return what a script does that waits with pauses and that is too little for a movement: WAKES or WRITES; or "".

    Of a rank that hangs, the training thread sleeps without a break, and nobody writes. Other threads do not count:
    those of torch, gloo, NCCL and gRPC wake in a rhythm in every rank.
    """
    both = before.processes.keys() & after.processes
    if any(_has_written(before.processes[each], after.processes[each]) for each in both):
        return WRITES
    return WAKES if after.turns > before.turns > 0 else ""


def _has_written(old: ProcessSample, new: ProcessSample) -> bool:
    io = new.io.minus(old.io)
    return io.written_bytes > _WAKE_UP_BYTES * io.writes


def _trains(old: TreeSample, new: TreeSample) -> bool:
    """Return whether the training thread has computed more than the thread of a rank that hangs does."""
    return new.training_s - old.training_s > _TRAINING_WAKE_S + _TRAINING_SHARE * (new.at_s - old.at_s)


def _has_computed(old: ProcessSample, new: ProcessSample, least_s: float) -> bool:
    """Return whether one of its threads has computed, or threads that began and ended between the samples."""
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
    """Return whether it has read or written more than wake-ups (at most eight bytes a call) and a line of a log."""
    io = new.io.minus(old.io)
    read, written = io.read_bytes - _WAKE_UP_BYTES * io.reads, io.written_bytes - _WAKE_UP_BYTES * io.writes
    return io.disk_bytes > 0 or max(read, written) > _LOG_BYTES


def _has_faulted(old: ProcessSample, new: ProcessSample) -> bool:
    return new.stat.major_faults > old.stat.major_faults


def _has_flowed(old: TcpSocket | None, new: TcpSocket) -> bool:
    """Return whether bytes have arrived, were acknowledged, or have entered or left a queue."""
    if old is None:
        return new.received > _HANDSHAKE_BYTES or new.acknowledged > _HANDSHAKE_BYTES
    return _counters(old) != _counters(new)


def _counters(each: TcpSocket) -> tuple[int, int, int, int]:
    return each.received, each.acknowledged, each.receive_queue, each.send_queue


def _has_changed(old: ProcessSample, new: ProcessSample) -> bool:
    """Return whether a child of it has ended, or whether it was stopped or continues."""
    was_stopped, is_stopped = old.stat.state == "T", new.stat.state == "T"
    return new.stat.children_ended != old.stat.children_ended or was_stopped != is_stopped
