"""Ends ranks that another launcher has started, on the leader's command: the launcher then ends or restarts the run.

Only SIGKILL ends a process that is stopped, or whose signal handlers cannot run. It leaves no core file, but the
stacks of the rank were taken before. Loader processes are left alone: torch's end when they see that their parent
is gone.
"""

import logging
import signal
from collections.abc import Mapping

from holdfast_agent.processes.rank import Rank
from holdfast_base import processes
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)


def end_ranks(ranks: Mapping[int, Rank], command: store.EndRanks) -> list[str]:
    """Kill the processes of a command; return why some of them are left alone, one line each.

    A rank that has ended already needs nothing: the leader repeats the command until it sees the end.
    """
    refusals = []
    for asked in command.ranks:
        rank = ranks.get(asked.rank)
        reason = "it is not on this node" if rank is None else _refusal(rank, asked)
        if not reason and rank is not None and processes.is_alive(rank.pid, rank.start_ticks):
            log.warning("process %d of rank %d is ended, so that the launcher acts", rank.pid, rank.rank)
            rank.is_killed = processes.send_signal(rank.pid, rank.start_ticks, signal.SIGKILL)
            if not rank.is_killed:
                reason = f"process {rank.pid} cannot be signalled: does it run as another user?"
        if reason:
            refusals.append(f"rank {asked.rank} is not ended: {reason}")
    return refusals


def _refusal(rank: Rank, asked: store.EndedRank) -> str:
    """Return why a rank is not the process that is meant, or need not end any more; "" if it is and must."""
    if not rank.is_identified:
        return "it has not said itself which process it is"
    if (rank.pid, rank.start_ticks) != (asked.pid, asked.start_ticks):
        return f"it is process {rank.pid} now, and not {asked.pid}"
    if rank.is_alive and rank.stalled_s < asked.stalled_s:
        return "it has moved since the command was given"
    return ""
