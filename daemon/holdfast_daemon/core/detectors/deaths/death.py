"""Tells the cause from the cascade when several ranks have ended."""

import signal
from collections.abc import Mapping
from enum import IntEnum

from holdfast_daemon.core.detectors.deaths.peer_loss import (
    bytes_expected_and_got,
    connection_lost,
    exception_line,
    met_another_size,
    raised_outside_torch,
)
from holdfast_daemon.core.naming import phase_name
from holdfast_daemon.core.texts.memory_errors import ran_out_of_memory
from holdfast_proto.exit_codes import ExitCode, signal_name
from holdfast_proto.v1 import common_pb2, store_pb2

_LINE_CHARACTERS = 240

# Signals with which a process also ends as a consequence: NCCL's watchdog aborts a rank whose peer is gone,
# launchers terminate the other ranks when one has failed.
_SECONDARY_SIGNALS = {signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE}

_DIRECT_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


class _Cause(IntEnum):
    """How an exit came about, the one that explains the others first."""

    CONFIGURATION = 0
    KILLED = 1
    FAILED = 2
    LEFT_EARLY = 3
    LOST_PEER = 4


def first_cause(exits: Mapping[int, store_pb2.RankExit]) -> tuple[int, ...]:
    """Return the ranks whose exit explains those of all others, the likeliest first.

    ``exits``: the exits of one generation that no command has caused, by global rank. A rank killed by the kernel comes
    before one that failed by itself, that before one that left with code 0, and that before those that lost
    a peer. Among equals the earliest is the likeliest. If all have lost a peer, all are returned: the rank
    they lost is not among ``exits``.
    """
    causes = {rank: _cause(rank_exit) for rank, rank_exit in exits.items()}
    first = min(causes.values(), default=None)
    culprits = [rank for rank, cause in causes.items() if cause == first]
    return tuple(sorted(culprits, key=lambda rank: (exits[rank].exited_unix_s, exits[rank].order, rank)))


def is_clean(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank has left with code 0."""
    return rank_exit.HasField("code") and rank_exit.code == 0


def lost_peer(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank ended because another had."""
    return _cause(rank_exit) == _Cause.LOST_PEER


def speaks_for_itself(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether nothing that another rank did can have brought this end about."""
    match _cause(rank_exit):
        case _Cause.KILLED:
            return rank_exit.signal in _DIRECT_SIGNALS
        case _Cause.FAILED:
            return not rank_exit.HasField("signal") and raised_outside_torch(rank_exit.last_words)
    return _cause(rank_exit) == _Cause.LEFT_EARLY


def was_aborted_for_a_size(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank is the victim of a call that others made with other sizes, or of another call."""
    return rank_exit.signal == signal.SIGABRT and met_another_size(rank_exit.last_words)


def is_configuration_error(rank_exit: store_pb2.RankExit) -> bool:
    """Return whether the rank said that its configuration is wrong, so that another start would not help."""
    return not rank_exit.HasField("signal") and rank_exit.code == ExitCode.CONFIGURATION


def describe(rank: int, rank_exit: store_pb2.RankExit) -> str:
    """Return one line for people, e.g. "rank 2 raised ValueError: bad sample in data of step 7"."""
    return f"rank {rank} {_what_happened(rank_exit)}{_where(rank_exit)}"


def _cause(rank_exit: store_pb2.RankExit) -> _Cause:
    if is_configuration_error(rank_exit):
        return _Cause.CONFIGURATION
    if connection_lost(rank_exit.last_words):
        return _Cause.LOST_PEER
    if rank_exit.HasField("signal"):
        return _Cause.FAILED if rank_exit.signal in _SECONDARY_SIGNALS else _Cause.KILLED
    if rank_exit.HasField("code") and rank_exit.code == 0:
        return _Cause.LEFT_EARLY
    return _Cause.FAILED


def _what_happened(rank_exit: store_pb2.RankExit) -> str:
    said = _shortened(exception_line(rank_exit.last_words))
    if is_configuration_error(rank_exit):
        return f"says that its configuration is wrong: {said}" if said else "says that its configuration is wrong"
    if rank_exit.HasField("signal"):
        return f"was killed by {signal_name(rank_exit.signal)}{_why_killed(rank_exit, said)}"
    if connection_lost(rank_exit.last_words):
        return f"lost a peer ({said})" if said else "lost a peer"
    if memory := ran_out_of_memory(exception_line(rank_exit.last_words)):
        return memory
    return f"raised {said}" if said else _without_words(rank_exit)


def _why_killed(rank_exit: store_pb2.RankExit, said: str) -> str:
    if rank_exit.signal != signal.SIGKILL:
        sizes = bytes_expected_and_got(rank_exit.last_words)
        why = said if sizes is None else f"a peer sent {sizes[1]} bytes where it expected {sizes[0]}"
        return f" ({why})" if why and rank_exit.signal == signal.SIGABRT else ""
    return " (out of memory, says the kernel)" if rank_exit.out_of_memory else " (out of memory, or killed by hand)"


def _without_words(rank_exit: store_pb2.RankExit) -> str:
    if not rank_exit.HasField("code"):
        return "ended and left no exit status"
    return f"exited with code {rank_exit.code}" if rank_exit.code else "left early with code 0"


def _where(rank_exit: store_pb2.RankExit) -> str:
    moment = "before the first step" if rank_exit.step < 0 else f"step {rank_exit.step}"
    if rank_exit.phase == common_pb2.PHASE_UNSPECIFIED:
        return f" {moment}" if rank_exit.step < 0 else f" in {moment}"
    phase = phase_name(rank_exit.phase)
    return f" in {phase}, {moment}" if rank_exit.step < 0 else f" in {phase} of {moment}"


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"
