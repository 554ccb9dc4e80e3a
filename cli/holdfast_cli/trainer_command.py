"""Checks, and tries, the configuration in a command that starts holdfast_trainer."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

import typer

from holdfast_cli.errors import ConfigurationError
from holdfast_cli.views.output import print_json

if TYPE_CHECKING:
    from holdfast_trainer.config import TrainerConfig

_MODULE = ("-m", "holdfast_trainer")


def checked_configuration(command: Sequence[str], *, ranks: int) -> "TrainerConfig | None":
    """Return the configuration that ``ranks`` ranks started with ``command`` will have; None if it is not our trainer.

    None too where the packages that read it are not installed: the ranks check it then. Raises
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


def report_dry_run(settings: "TrainerConfig", *, json: bool) -> None:
    """Try a step of the layout's ranks and print the outcome; raise ConfigurationError if it does not work.

    Each problem but the last, which is the error's, is a line on stderr.
    """
    from holdfast_trainer.dry_run.layout_trial import dry_run  # it imports torch: only those who ask for a dry run wait

    result = dry_run(settings)
    if json:
        print_json(asdict(result))
    if result.problems:
        *others, last = result.problems
        for problem in others:
            typer.echo(f"holdfast: {problem}", err=True)
        raise ConfigurationError(last)
    if not json:
        print(result.summary, *(f"not tried: {line}" for line in result.not_covered), sep="\n")
