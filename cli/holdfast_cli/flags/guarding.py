"""Flags of the command that judges another framework's checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import OUTPUT, Json

_READING, _METRICS = "Reading", "Metrics"


@dataclass(frozen=True, kw_only=True)
class GuardFlags:
    """Judge the checkpoints that a training framework writes into a folder, and name the newest good one.

    DIR holds checkpoints of torch.distributed.checkpoint, the Trainer of Hugging Face, Lightning or Megatron. The guard
    prints a line for each as soon as it is complete, until Ctrl-C. It reads a part of each tensor, slowly, and changes
    nothing. With --once it exits with 1 if the newest complete checkpoint is bad, and with 66 if none can be read.

    \b
    Examples:
      holdfast guard checkpoints
      holdfast guard checkpoints --once --full
    """

    folder: Annotated[Path, typer.Argument(help="Folder with checkpoints.", metavar="DIR")]
    once: Annotated[bool, typer.Option("--once", help="Judge what is there, and exit.", rich_help_panel=OUTPUT)] = False
    json: Json = False
    full: Annotated[
        bool, typer.Option("--full", help="Read every byte, and check all checksums.", rich_help_panel=_READING)
    ] = False
    sample_mb: Annotated[
        int,
        typer.Option(
            help="Megabytes of tensors to read of each checkpoint.", metavar="MB", min=1, rich_help_panel=_READING
        ),
    ] = 256
    bytes_per_s: Annotated[
        float,
        typer.Option(
            help="Most bytes to read in a second. 0: no limit.", metavar="BYTES", min=0, rich_help_panel=_READING
        ),
    ] = 100_000_000
    quiet_s: Annotated[
        float,
        typer.Option(
            "--quiet-s",
            help="Seconds without a change after which a checkpoint may be complete.",
            metavar="SECONDS",
            min=0,
            rich_help_panel=_READING,
        ),
    ] = 10.0
    incomplete_after_s: Annotated[
        float,
        typer.Option(
            "--incomplete-after-s",
            help="Seconds without a change after which an unfinished checkpoint is reported.",
            metavar="SECONDS",
            min=0,
            rich_help_panel=_READING,
        ),
    ] = 600.0
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Port on which /metrics is served. 0: any free one.",
            show_default="no metrics",
            metavar="PORT",
            min=0,
            max=65535,
            rich_help_panel=_METRICS,
        ),
    ] = None
    metrics_address: Annotated[
        str, typer.Option(help="Address on which /metrics is served.", metavar="ADDRESS", rich_help_panel=_METRICS)
    ] = "127.0.0.1"
    endpoint: Annotated[
        Path | None,
        typer.Option(
            help="File that gets the process id and the port of /metrics, as JSON.",
            metavar="FILE",
            rich_help_panel=_METRICS,
        ),
    ] = None
