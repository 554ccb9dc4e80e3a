"""Flags of the commands that take evidence from a live run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import DEFAULT_DIRECTORY, OUTPUT, Control, Directory, Json, RunName
from holdfast_proto.limits import LONGEST_PROFILE_S, MOST_PROFILED_STEPS

_LOOK = "Evidence"


@dataclass(frozen=True, kw_only=True)
class StacksFlags:
    """Print where the threads of live ranks are. The run continues.

    A stack that several ranks have is printed once; stacks of few ranks come first. A rank that makes no progress for
    5 s shows compiled code too. That pauses it for a moment. Other ranks are read without a pause.

    \b
    Examples:
      holdfast stacks
      holdfast stacks --rank 3 --rank 7 --native
      holdfast stacks --output stacks-of-now
    """

    rank: Annotated[
        list[int] | None,
        typer.Option(
            help="Rank to look at. Can be repeated.", show_default="all", metavar="RANK", min=0, rich_help_panel=_LOOK
        ),
    ] = field(default_factory=list)
    native: Annotated[
        bool,
        typer.Option(
            "--native",
            help="Show compiled code of every rank. Pauses each for about half a second.",
            rich_help_panel=_LOOK,
        ),
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(
            help="Also write a text for each rank into this folder.", metavar="FOLDER", rich_help_panel=OUTPUT
        ),
    ] = None
    json: Json = False
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None


@dataclass(frozen=True, kw_only=True)
class ProfileFlags:
    """Profile the next steps of a live rank with torch's profiler. The run continues.

    It writes a trace for Perfetto or chrome://tracing. Of a rank on a GPU, it also writes what torch has allocated. The
    rank is slower while it is profiled, and the others wait for it. If no step ends in time, nothing is written.

    \b
    Examples:
      holdfast profile --rank 0
      holdfast profile --rank 3 --steps 10 --timeout 600
    """

    rank: Annotated[int | None, typer.Option(help="Rank to profile.", metavar="RANK", min=0, rich_help_panel=_LOOK)] = (
        None
    )
    steps: Annotated[
        int,
        typer.Option(help="Number of full steps.", metavar="N", min=1, max=MOST_PROFILED_STEPS, rich_help_panel=_LOOK),
    ] = 3
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            help="Seconds for the steps.",
            metavar="SECONDS",
            min=1.0,
            max=LONGEST_PROFILE_S,
            rich_help_panel=_LOOK,
        ),
    ] = 120.0
    json: Json = False
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
