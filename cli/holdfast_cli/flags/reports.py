"""Flags of the commands that describe runs: for people, and against each other."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from holdfast_cli.flags.common import DEFAULT_DIRECTORY, OUTPUT, RUN, Directory, Json, argument, option

_PRIVACY = "What it shows"

ShowArguments = Annotated[
    bool,
    option(
        "--show-arguments",
        _PRIVACY,
        about="Show the values of the command's arguments. Without it, only numbers are shown.",
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

    run: Annotated[str | None, argument("RUN", unset="the newest")] = None
    """Name of the run, or its folder."""
    directory: Directory = DEFAULT_DIRECTORY
    output: Annotated[Path | None, option("--output FILE", OUTPUT, unset="RUN-report.html")] = None
    """File to write."""
    redact_hosts: Annotated[bool, option("--redact-hosts", _PRIVACY)] = False
    """Hide names of hosts and users, addresses and folders too."""
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

    first: Annotated[str, argument("A")]
    """Name of a run, or its folder: the one to compare with."""
    second: Annotated[str, argument("B")]
    """Name of a run, or its folder."""
    directory: Directory = DEFAULT_DIRECTORY
    fail_on: Annotated[list[str] | None, option("--fail-on CHECK", RUN)] = field(default_factory=list)
    """Change of B against A that is a regression: a name, and a signed change in percent or in the unit of the
    number, as in "tokens_per_s -5%". Can be repeated."""
    show_arguments: ShowArguments = False
    json: Json = False
