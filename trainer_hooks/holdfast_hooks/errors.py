"""Errors that a user must act on."""

from typing import ClassVar

from holdfast_proto.exit_codes import ExitCode


class ConfigurationError(Exception):
    """The run cannot work as configured. The message is one line that says what to change.

    If nothing catches it, it ends the rank with ``exit_code``, and no agent starts the rank again.
    """

    exit_code: ClassVar[int] = ExitCode.CONFIGURATION
