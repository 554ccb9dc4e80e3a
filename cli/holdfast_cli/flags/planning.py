"""Flags of `holdfast plan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import DEFAULT_DIRECTORY, OUTPUT, Directory, Json, option

_LAYOUT, _CLUSTER = "Layout", "Cluster"
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Flags that are no options of ours are the trainer's."""


@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """Show what a layout needs and costs before it is launched. With --gpus, list the layouts that fit, fastest first.

    Takes the trainer's own flags too. With --gpus, those of [parallel] fix what is not searched. `compare RUN` shows
    the measured memory, step time, MFU and bubble of a run next to the plan of its layout.

    \b
    Examples:
      holdfast plan --config run.toml --parallel.dp 4
      holdfast plan --model 70b --gpus 64 --gpu h100 --parallel.tp 8
      holdfast plan --model 8b --gpus 8 --write 8b.toml
      holdfast plan compare my-run --gpu a100
    """

    context: typer.Context
    directory: Directory = DEFAULT_DIRECTORY
    config: Annotated[Path | None, option("--config FILE", _LAYOUT)] = None
    """TOML file of the trainer."""
    model: Annotated[str | None, option("--model SIZE", _LAYOUT)] = None
    """7b, 8b, 13b, 70b, 175b or 405b, instead of [model] in the file."""
    gpus: Annotated[int | None, option("--gpus N", _CLUSTER, least=1)] = None
    """Search the layouts of N GPUs."""
    gpu: Annotated[str, option("--gpu KIND", _CLUSTER)] = "h100"
    """Kind: b200, h200, h100, h100-pcie, a100, a100-40gb, a100-pcie, v100 or l40s."""
    gpus_per_node: Annotated[int | None, option("--gpus-per-node N", _CLUSTER, unset="8", least=1)] = None
    """GPUs in one machine."""
    node_gbps: Annotated[
        float | None, option("--node-link-gbps GBPS", _CLUSTER, unset="that of the kind", least=0.001, most=1e6)
    ] = None
    """Gbit/s in one direction between GPUs of a node."""
    network_gbps: Annotated[
        float | None, option("--link-gbps GBPS", _CLUSTER, unset="that of the kind", least=0.001, most=1e6)
    ] = None
    """Gbit/s in one direction between nodes, for each GPU."""
    tokens: Annotated[float | None, option("--tokens N", _LAYOUT, least=1, most=1e18)] = None
    """Tokens of the whole run, such as 15e12: shows its time and, with hardware.gpu_hour_price, its price."""
    explain: Annotated[bool, option("--explain", OUTPUT)] = False
    """Show each formula with its numbers, single calls, pipelines and more GPUs."""
    write: Annotated[Path | None, option("--write FILE", OUTPUT)] = None
    """Write the planned settings, or the first of those found, as a TOML file of the trainer."""
    json: Json = False
