"""What a rank's command tells if it is that of our own trainer: a configuration, which can be checked."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast_cli.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast_trainer.config import TrainerConfig

_MODULE = ("-m", "holdfast_trainer")


def checked_configuration(command: Sequence[str], *, ranks: int) -> "TrainerConfig | None":
    """Return the configuration that ``ranks`` ranks started with ``command`` will have; None if it is not our trainer.

    None too where the packages that read it are not installed: then the ranks' own check must do. Raises
    ConfigurationError, in one line, if the trainer would refuse it.
    """
    if _MODULE not in pairwise(command):
        return None
    try:
        from holdfast_trainer import config
    except ModuleNotFoundError:
        return None
    import holdfast_hooks

    flags = command[list(pairwise(command)).index(_MODULE) + len(_MODULE) :]
    try:
        settings = config.from_arguments(flags)
        config.expect_ranks(settings, ranks)
    except holdfast_hooks.ConfigurationError as error:
        raise ConfigurationError("; ".join(str(error).splitlines())) from None
    return settings
