"""Errors that a user can act on: one line each."""

from holdfast_proto.rank_context import EXIT_CONFIGURATION


class CommandError(Exception):
    """Ends a command with one line on stderr, which names the setting and the fix."""

    exit_code = 1


class ConfigurationError(CommandError):
    """A setting is wrong: trying again cannot help."""

    exit_code = EXIT_CONFIGURATION


class InterruptionError(CommandError):
    """A signal asked the command to end. ``exit_code`` follows the shells' 128 + signal."""

    def __init__(self, signal_number: int, reason: str = "") -> None:
        ended = "interrupted: everything that this command had started was stopped"
        super().__init__(f"{ended}; {reason}" if reason else ended)
        self.exit_code = 128 + signal_number
