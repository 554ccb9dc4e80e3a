"""Checks the configuration in a command that starts holdfast_trainer."""

from collections.abc import Sequence
from itertools import pairwise

from holdfast_cli.errors import ConfigurationError
from holdfast_hooks import ConfigurationError as RefusedConfiguration

_MODULE = ("-m", "holdfast_trainer")


def check_configuration(command: Sequence[str], *, ranks: int) -> None:
    """Raise ConfigurationError, in one line, if ``ranks`` ranks of our trainer would refuse the flags of ``command``.

    Another trainer's command is not checked. Nor is ours where the packages that read its configuration are not
    installed: the ranks check it then.
    """
    if _MODULE not in pairwise(command):
        return
    try:
        from holdfast_trainer import config
    except ModuleNotFoundError:
        return

    flags = command[list(pairwise(command)).index(_MODULE) + len(_MODULE) :]
    try:
        config.expect_ranks(config.from_arguments(flags), ranks)
    except RefusedConfiguration as error:
        raise ConfigurationError("; ".join(str(error).splitlines())) from None
