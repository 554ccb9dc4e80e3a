"""Flags of the commands that take evidence from a live run, or look at its nodes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from holdfast_cli.flags.common import (
    DEFAULT_DIRECTORY,
    OUTPUT,
    RUN,
    Control,
    Directory,
    Json,
    OneRunFlags,
    RunName,
    option,
)
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

    rank: Annotated[list[int] | None, option("--rank RANK", _LOOK, unset="all", least=0)] = field(default_factory=list)
    """Rank to look at. Can be repeated."""
    native: Annotated[bool, option("--native", _LOOK)] = False
    """Show compiled code of every rank. Pauses each for about half a second."""
    output: Annotated[Path | None, option("--output FOLDER", OUTPUT)] = None
    """Also write a text for each rank into this folder."""
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

    rank: Annotated[int | None, option("--rank RANK", _LOOK, least=0)] = None
    """Rank to profile."""
    steps: Annotated[int, option("--steps N", _LOOK, least=1, most=MOST_PROFILED_STEPS)] = 3
    """Number of full steps."""
    timeout_s: Annotated[float, option("--timeout SECONDS", _LOOK, least=1.0, most=LONGEST_PROFILE_S)] = 120.0
    """Seconds for the steps."""
    json: Json = False
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None


@dataclass(frozen=True, kw_only=True)
class NodesFlags(OneRunFlags):
    """List the nodes of a run: their newest check, their faults, and which of them should not train.

    Of a run with many nodes, it lists those that something is known against, and counts others. With --release, it ends
    the quarantine of a node instead.

    \b
    Examples:
      holdfast nodes
      holdfast nodes --release node-17
    """

    everything: Annotated[bool, option("--all", OUTPUT)] = False
    """List all nodes."""
    release: Annotated[str | None, option("--release NODE", RUN)] = None
    """Let this node train again. What is known against it now counts no more."""
    json: Json = False
