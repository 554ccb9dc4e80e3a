"""Flags of `holdfast plan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import OUTPUT, Json

_LAYOUT, _CLUSTER = "Layout", "Cluster"
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Flags that are no options of ours are the trainer's."""


@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """Show what a layout needs and costs before it is launched. With --gpus, list the layouts that fit, fastest first.

    Takes the trainer's own flags too. With --gpus, those of [parallel] fix what is not searched.

    \b
    Examples:
      holdfast plan --config run.toml --parallel.dp 4
      holdfast plan --model 70b --gpus 64 --gpu h100 --parallel.tp 8
      holdfast plan --model 8b --gpus 8 --write 8b.toml
    """

    context: typer.Context
    config: Annotated[
        Path | None, typer.Option(help="TOML file of the trainer.", metavar="FILE", rich_help_panel=_LAYOUT)
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="7b, 8b, 13b, 70b, 175b or 405b, instead of [model] in the file.",
            metavar="SIZE",
            rich_help_panel=_LAYOUT,
        ),
    ] = None
    gpus: Annotated[
        int | None,
        typer.Option(help="Search the layouts of N GPUs.", metavar="N", min=1, rich_help_panel=_CLUSTER),
    ] = None
    gpu: Annotated[
        str,
        typer.Option(
            help="Kind: b200, h200, h100, a100, a100-40gb, v100 or l40s.", metavar="KIND", rich_help_panel=_CLUSTER
        ),
    ] = "h100"
    gpus_per_node: Annotated[
        int, typer.Option(help="GPUs in one machine.", metavar="N", min=1, rich_help_panel=_CLUSTER)
    ] = 8
    node_gbps: Annotated[
        float | None,
        typer.Option(
            "--node-link-gbps",
            help="Gbit/s in one direction between GPUs of a node.",
            show_default="that of the kind",
            metavar="GBPS",
            min=0.001,
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    network_gbps: Annotated[
        float | None,
        typer.Option(
            "--link-gbps",
            help="Gbit/s in one direction between nodes, for each GPU.",
            show_default="that of the kind",
            metavar="GBPS",
            min=0.001,
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    write: Annotated[
        Path | None,
        typer.Option(
            help="Write the planned settings, or the first of those found, as a TOML file of the trainer.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    json: Json = False
