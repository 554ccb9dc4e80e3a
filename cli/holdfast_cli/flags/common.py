"""Flags that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.settings.schema import RunSettings, schema

RUN, OUTPUT = "Run", "Output"
DEFAULT_DIRECTORY = RunSettings.directory
REDIS_HELP = schema()["redis_url"].help

RunName = Annotated[
    str | None,
    typer.Option("--run", help="Name of the run.", show_default="the newest", metavar="NAME", rich_help_panel=RUN),
]
Directory = Annotated[
    Path, typer.Option(help="Folder that holds one folder per run.", metavar="FOLDER", rich_help_panel=RUN)
]
Control = Annotated[
    Path | None,
    typer.Option(
        "--control",
        help="Socket of the daemon, if `holdfast run` did not start it.",
        metavar="SOCKET",
        rich_help_panel=RUN,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.", rich_help_panel=OUTPUT)]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="File with settings; flags override it.",
        show_default="holdfast.toml, if it exists",
        metavar="FILE",
        rich_help_panel=RUN,
    ),
]
RankCommand = Annotated[
    list[str] | None,
    typer.Argument(help="Command of one rank: the words after --.", metavar="COMMAND"),
]
