"""Flags that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo, OptionInfo

from holdfast_cli.settings.schema import RunSettings

RUN, OUTPUT, METRICS = "Run", "Output", "Metrics"
DEFAULT_DIRECTORY = RunSettings.directory


def option(
    flag: str,
    panel: str | None = None,
    *,
    about: str = "",
    unset: str | bool = True,
    least: float | None = None,
    most: float | None = None,
) -> OptionInfo:
    """Return the flag of a field.

    Args:
        flag: ``--NAME METAVAR``; only ``--NAME`` if it takes no value, or one word of an enumeration.
        panel: heading over it in the help.
        about: help of a flag that several commands share. That of any other flag is the docstring below the field.
        unset: what the default stands for, in words. True: it stands for itself.
        least: smallest value.
        most: largest value.
    """
    name, _, metavar = flag.partition(" ")
    found: OptionInfo = typer.Option(
        name, help=about, metavar=metavar or None, show_default=unset, min=least, max=most, rich_help_panel=panel
    )
    return found


def argument(metavar: str, *, about: str = "", unset: str | bool = True, least: float | None = None) -> ArgumentInfo:
    """Return a word of the command line that no flag precedes. See :func:`option`."""
    found: ArgumentInfo = typer.Argument(metavar=metavar, help=about, show_default=unset, min=least)
    return found


RunName = Annotated[str | None, option("--run NAME", RUN, about="Name of the run.", unset="the newest")]
Directory = Annotated[Path, option("--directory FOLDER", RUN, about="Folder that holds one folder per run.")]
Control = Annotated[
    Path | None, option("--control SOCKET", RUN, about="Socket of the daemon, if `holdfast run` did not start it.")
]
Json = Annotated[bool, option("--json", OUTPUT, about="Print JSON on stdout, for scripts.")]
ConfigFile = Annotated[
    Path | None,
    option("--config FILE", RUN, about="File with settings; flags override it.", unset="holdfast.toml, if it exists"),
]
RankCommand = Annotated[list[str] | None, argument("COMMAND", about="Command of one rank: the words after --.")]
MetricsAddress = Annotated[
    str, option("--metrics-address ADDRESS", METRICS, about="Address on which /metrics is served.")
]
MetricsConfig = Annotated[
    Path | None,
    option(
        "--metrics-config FILE",
        METRICS,
        about="File with TLS and passwords for /metrics, as exporters of Prometheus have it: see docs/tls.md.",
        unset="plain HTTP for everybody",
    ),
]
LOCAL = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class OneRunFlags:
    """Flags that name a run, and how to reach its daemon."""

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
