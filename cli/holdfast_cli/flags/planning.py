"""Flags of `holdfast plan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import OUTPUT, Json, option

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
    config: Annotated[Path | None, option("--config FILE", _LAYOUT)] = None
    """TOML file of the trainer."""
    model: Annotated[str | None, option("--model SIZE", _LAYOUT)] = None
    """7b, 8b, 13b, 70b, 175b or 405b, instead of [model] in the file."""
    gpus: Annotated[int | None, option("--gpus N", _CLUSTER, least=1)] = None
    """Search the layouts of N GPUs."""
    gpu: Annotated[str, option("--gpu KIND", _CLUSTER)] = "h100"
    """Kind: b200, h200, h100, a100, a100-40gb, v100 or l40s."""
    gpus_per_node: Annotated[int, option("--gpus-per-node N", _CLUSTER, least=1)] = 8
    """GPUs in one machine."""
    node_gbps: Annotated[
        float | None, option("--node-link-gbps GBPS", _CLUSTER, unset="that of the kind", least=0.001)
    ] = None
    """Gbit/s in one direction between GPUs of a node."""
    network_gbps: Annotated[
        float | None, option("--link-gbps GBPS", _CLUSTER, unset="that of the kind", least=0.001)
    ] = None
    """Gbit/s in one direction between nodes, for each GPU."""
    write: Annotated[Path | None, option("--write FILE", OUTPUT)] = None
    """Write the planned settings, or the first of those found, as a TOML file of the trainer."""
    json: Json = False
