"""Exit codes of the `holdfast` command, of agents, daemons and ranks, and the names of signals.

The table is in docs/exit-codes.md. Codes from 64 to 78 come from sysexits.h; 93 has no meaning
there. A command that a signal ends has the code 128 + signal, as shells report it.
"""

import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """How a process of Holdfast ended."""

    SUCCESS = 0
    FAILED = 1
    """The run failed, or the command could not do what it was asked."""
    USAGE = 2
    """The command line is not understood."""
    REGRESSED = 3
    """`holdfast compare` found a change that a check calls a regression."""
    BAD_LOSS = 65
    """The run ended with a loss that was not finite, or ``[loss]`` has stopped it."""
    CHECKPOINTS_UNAVAILABLE = 66
    """Checkpoints exist and cannot be used now. Nothing was started, and nothing was changed."""
    LAST_CHECKPOINT_FAILED = 74
    """The run ended as planned, but its last steps are in no checkpoint."""
    REQUEUE = 75
    """`holdfast observe --exit-code verdict`: the infrastructure has failed, and a requeue may help."""
    CONFIGURATION = 78
    """A setting is wrong: the same command would fail again."""
    DO_NOT_REQUEUE = 93
    """`holdfast observe --exit-code verdict`: the run would fail again."""
    HANGUP = 128 + signal.SIGHUP
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


PREEMPTION_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a scheduler sends some time before it ends a job, such as ``sbatch --signal=B:USR1@120``."""


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, and ``signal 63`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int) -> str:
    """Return in words how a child process ended. ``code``: its exit code, or minus the signal that killed it."""
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
