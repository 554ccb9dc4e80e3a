"""Tells the cause from the cascade when several ranks have ended."""

import signal
from collections.abc import Mapping

from holdfast_core.detectors.deaths.peer_loss import (
    bytes_expected_and_got,
    connection_lost,
    met_another_size,
    raised_outside_torch,
)
from holdfast_core.detectors.deaths.raised import exception_line, names_an_exception
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2

_SAID_CHARACTERS = 2000

# Signals with which a process also ends as a consequence: NCCL's watchdog aborts a rank whose peer is gone,
# launchers terminate the other ranks when one has failed.
_SECONDARY_SIGNALS = {signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE}

_LAUNCHERS_SIGNALS = _SECONDARY_SIGNALS - {signal.SIGABRT}

_SEEN_LATE_S = 1.0
"""Seconds that an agent may need to see the end of a process that is not its own."""

_DIRECT_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


_INDEPENDENT = (store_pb2.END_CAUSE_KILLED, store_pb2.END_CAUSE_FAILED)


def first_cause(exits: Mapping[int, store_pb2.RankExit]) -> tuple[int, ...]:
    """Return the ranks whose exit explains those of all others, the likeliest first.

    ``exits``: the exits of one generation that no command has caused, by global rank. A rank killed by the kernel comes
    before one that failed by itself, that before one that left with code 0, and that before those that lost
    a peer. Among equals the earliest is the likeliest. A rank that failed by itself in its own code is named next
    to one that was killed: these are two faults. If all have lost a peer, all are returned: the rank they lost is not
    among ``exits``.
    """
    causes = {rank: _cause(rank_exit) for rank, rank_exit in exits.items()}
    first = min(causes.values(), default=None)
    culprits = [
        rank
        for rank, cause in causes.items()
        if cause == first or (first in _INDEPENDENT and cause in _INDEPENDENT and speaks_for_itself(exits[rank]))
    ]
    # A launcher ends the other ranks when it has seen one fail, and an agent may see these ends first.
    others = [exits[rank].exited_unix_s for rank in culprits if not may_be_the_launchers(exits[rank])]
    if others:
        culprits = [
            rank
            for rank in culprits
            if not may_be_the_launchers(exits[rank]) or exits[rank].exited_unix_s < min(others) - _SEEN_LATE_S
        ]
    return tuple(sorted(culprits, key=lambda rank: (causes[rank], exits[rank].exited_unix_s, exits[rank].order, rank)))


def may_be_the_launchers(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether a launcher may have ended the rank, after another one had failed."""
    return rank_exit.signal in _LAUNCHERS_SIGNALS and not names_an_exception(rank_exit.last_words)


def left_no_message(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank was aborted, and nothing says why: it may be the cause or a victim."""
    return rank_exit.signal == signal.SIGABRT and not rank_exit.last_words.strip()


def is_clean(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank has left with code 0."""
    return rank_exit.HasField("code") and rank_exit.code == 0


def lost_peer(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank ended because another had."""
    return _cause(rank_exit) == store_pb2.END_CAUSE_LOST_PEER


def may_follow_from_a_hang(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether a rank that hangs may have brought this end about: by a timeout, or by the launcher after it."""
    return lost_peer(rank_exit) or may_be_the_launchers(rank_exit)


def speaks_for_itself(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether nothing that another rank did can have brought this end about."""
    if rank_exit.HasField("gpu_fault"):
        return True
    match _cause(rank_exit):
        case store_pb2.END_CAUSE_KILLED:
            return rank_exit.signal in _DIRECT_SIGNALS
        case store_pb2.END_CAUSE_FAILED:
            return not rank_exit.HasField("signal") and raised_outside_torch(rank_exit.last_words)
    return _cause(rank_exit) == store_pb2.END_CAUSE_LEFT_EARLY


def was_aborted_for_a_size(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank is the victim of a call that others made with other sizes, or of another call."""
    return rank_exit.signal == signal.SIGABRT and met_another_size(rank_exit.last_words)


def is_configuration_error(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank said that its configuration is wrong, so that another start would not help."""
    return not rank_exit.HasField("signal") and rank_exit.code == ExitCode.CONFIGURATION


def end_of(rank: int, rank_exit: store_pb2.RankExit) -> store_pb2.RankEnd:
    """Return how a rank ended, as far as its exit and its last words show it."""
    end = store_pb2.RankEnd(
        rank=rank,
        cause=_cause(rank_exit),
        said=exception_line(rank_exit.last_words)[:_SAID_CHARACTERS],
        raised=names_an_exception(rank_exit.last_words),
        out_of_memory=rank_exit.out_of_memory,
        step=rank_exit.step,
        phase=rank_exit.phase,
    )
    if rank_exit.HasField("signal"):
        end.signal = rank_exit.signal
    elif rank_exit.HasField("code"):
        end.code = rank_exit.code
    if rank_exit.HasField("gpu_fault"):
        end.gpu_fault.CopyFrom(rank_exit.gpu_fault)
    sizes = bytes_expected_and_got(rank_exit.last_words)
    if sizes is not None:
        end.expected_bytes, end.got_bytes = sizes
    return end


def _cause(rank_exit: store_pb2.RankExit) -> "store_pb2.EndCause":
    if is_configuration_error(rank_exit):
        return store_pb2.END_CAUSE_CONFIGURATION
    if rank_exit.gpu_fault.fatal:
        return store_pb2.END_CAUSE_KILLED  # whatever the program says: its GPU computes nothing any more
    if connection_lost(rank_exit.last_words) and not rank_exit.HasField("gpu_fault"):
        return store_pb2.END_CAUSE_LOST_PEER
    if rank_exit.HasField("signal"):
        return store_pb2.END_CAUSE_FAILED if rank_exit.signal in _SECONDARY_SIGNALS else store_pb2.END_CAUSE_KILLED
    if rank_exit.HasField("code") and rank_exit.code == 0:
        return store_pb2.END_CAUSE_LEFT_EARLY
    return store_pb2.END_CAUSE_FAILED
