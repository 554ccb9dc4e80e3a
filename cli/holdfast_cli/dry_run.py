"""Tries a layout on this machine before it is launched, and reports the outcome."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from holdfast_cli.errors import ConfigurationError
from holdfast_cli.views.output import print_json

if TYPE_CHECKING:
    from holdfast_trainer.config import TrainerConfig


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
