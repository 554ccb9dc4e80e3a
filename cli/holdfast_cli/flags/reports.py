"""Flags of the commands that describe runs: for people, and against each other."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import DEFAULT_DIRECTORY, OUTPUT, RUN, Directory, Json

_PRIVACY = "What it shows"

ShowArguments = Annotated[
    bool,
    typer.Option(
        "--show-arguments",
        help="Show the values of the command's arguments. Without it, only numbers are shown.",
        rich_help_panel=_PRIVACY,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Write one HTML file that shows what a run was like. It needs no network and no other file.

    It shows the state and why, curves, where the time went, incidents, checkpoints, slow ranks and settings. It works
    while the run lives and afterwards, from the run's folder or from its daemon's. What is missing is named in it.
    Passwords, tokens and values of arguments are hidden.

    \b
    Examples:
      holdfast report
      holdfast report my-run --redact-hosts --output report.html
    """

    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Name of the run, or its folder.", show_default="the newest"),
    ] = None
    directory: Directory = DEFAULT_DIRECTORY
    output: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="RUN-report.html", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None
    redact_hosts: Annotated[
        bool,
        typer.Option(
            "--redact-hosts",
            help="Hide names of hosts and users, addresses and folders too.",
            rich_help_panel=_PRIVACY,
        ),
    ] = False
    show_arguments: ShowArguments = False


@dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """Compare two runs: loss, speed, goodput, incidents, checkpoints and settings.

    With --fail-on, exit with 3 if the second run is worse than the first one by more than the check allows. If a number
    of a check is not known, exit with 1. `--fail-on default` stands for "loss +2%", "tokens_per_s -5%",
    "step_p95_s +20%" and "goodput -0.02". Passwords, tokens and values of arguments are hidden.

    \b
    Examples:
      holdfast compare monday tuesday
      holdfast compare main branch --fail-on default --fail-on "restarts +0"
    """

    first: Annotated[str, typer.Argument(metavar="A", help="Name of a run, or its folder: the one to compare with.")]
    second: Annotated[str, typer.Argument(metavar="B", help="Name of a run, or its folder.")]
    directory: Directory = DEFAULT_DIRECTORY
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            help="Change of B against A that is a regression: a name, and a signed change in percent or in the unit of "
            'the number, as in "tokens_per_s -5%". Can be repeated.',
            metavar="CHECK",
            rich_help_panel=RUN,
        ),
    ] = field(default_factory=list)
    show_arguments: ShowArguments = False
    json: Json = False
