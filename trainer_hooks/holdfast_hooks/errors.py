"""Errors that a user must act on."""


class ConfigurationError(Exception):
    """The run cannot work as configured; the message is one line that says what to change.

    Left uncaught it ends the rank with exit code 78, which agents do not answer with a restart.
    """
