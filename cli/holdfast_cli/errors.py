"""Errors that a user can act on. Each is one line."""

from holdfast_proto.exit_codes import ExitCode


class CommandError(Exception):
    """Ends a command with one line on stderr, which names the setting and the fix."""

    exit_code: int = ExitCode.FAILED


class UsageError(CommandError):
    """The command line lacks something that no file has either."""

    exit_code = ExitCode.USAGE


class SettingsError(CommandError):
    """A setting is wrong: the same command would fail again."""

    exit_code = ExitCode.CONFIGURATION


class BadLossError(CommandError):
    """A run ended with a loss that was not finite, or was stopped because of its loss."""

    exit_code = ExitCode.BAD_LOSS


class CheckpointsUnavailableError(CommandError):
    """Checkpoints exist and cannot be used now: nothing was started."""

    exit_code = ExitCode.CHECKPOINTS_UNAVAILABLE


class LastCheckpointError(CommandError):
    """A run ended as planned, but its last checkpoint was not committed."""

    exit_code = ExitCode.LAST_CHECKPOINT_FAILED


class InterruptionError(CommandError):
    """A signal asked the command to end. ``exit_code`` follows the shells' 128 + signal."""

    def __init__(self, signal_number: int, reason: str = "") -> None:
        ended = "interrupted: everything that this command had started was stopped"
        super().__init__(f"{ended}; {reason}" if reason else ended)
        self.exit_code = 128 + signal_number
        self._signal, self._reason = signal_number, reason

    def with_reason(self, reason: str) -> "InterruptionError":
        """Return the same error with one more reason, or with a fact about its effect."""
        return InterruptionError(self._signal, "; ".join(filter(None, [self._reason, reason])))
