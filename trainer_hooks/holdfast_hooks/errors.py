"""Errors that a user must act on."""

from typing import ClassVar

from holdfast_proto.exit_codes import ExitCode


class ConfigurationError(Exception):
    """The run cannot work as configured; the message is one line that says what to change.

    Left uncaught it ends the rank with ``exit_code``, which agents do not answer with a restart.
    """

    exit_code: ClassVar[int] = ExitCode.CONFIGURATION
