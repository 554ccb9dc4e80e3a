"""``holdfast plan``: what a layout needs and costs, or which layouts fit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast_cli.commands.options import Json
from holdfast_cli.errors import CommandError, ConfigurationError

if TYPE_CHECKING:
    from holdfast_trainer.config import TrainerConfig
    from holdfast_trainer.planning.hardware import Cluster

_BEST = 5
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Flags that are no options of ours are the trainer's."""


def plan(
    context: typer.Context,
    *,
    config: Annotated[Path | None, typer.Option(help="TOML file of the trainer.")] = None,
    model: Annotated[str | None, typer.Option(help="7b, 13b, 70b or 175b, instead of the file's [model].")] = None,
    gpus: Annotated[int | None, typer.Option(help="Search the layouts of so many GPUs.", min=1)] = None,
    gpu: Annotated[str, typer.Option(help="Kind: b200, h200, h100, a100, a100-40gb, v100 or l40s.")] = "h100",
    gpus_per_node: Annotated[int, typer.Option(help="GPUs in one machine.", min=1)] = 8,
    node_gbps: Annotated[
        float | None, typer.Option("--node-link-gbps", help="Gbit/s one way between GPUs of a node.", min=0.001)
    ] = None,
    network_gbps: Annotated[
        float | None, typer.Option("--link-gbps", help="Gbit/s one way between nodes, for each GPU.", min=0.001)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Try a training step of the layout's ranks here, without GPU or memory.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what a layout needs and costs before it is launched; with --gpus, which layouts fit, the fastest first.

    Takes the trainer's own flags too; with --gpus, those of [parallel] fix what is not to be searched. Examples:

    holdfast plan --config run.toml --parallel.dp 4

    holdfast plan --model 70b --gpus 64 --gpu h100 --parallel.tp 8

    holdfast plan --config run.toml --dry-run
    """
    import holdfast_hooks

    if dry_run and gpus is not None:
        raise ConfigurationError("--dry-run tries one layout, but --gpus searches many: leave out one of them")
    try:
        if dry_run:
            _try_layout(config, model, context.args, json=json)
            return
        cluster = _cluster(gpu, gpus_per_node, node_gbps, network_gbps)
        if gpus is None:
            _plan_layout(config, model, context.args, cluster, json=json)
        else:
            _search_layouts(config, model, context.args, cluster, gpus=gpus, json=json)
    except holdfast_hooks.ConfigurationError as error:
        raise ConfigurationError("; ".join(str(error).splitlines())) from None


def _cluster(gpu: str, gpus_per_node: int, node_gbps: float | None, network_gbps: float | None) -> "Cluster":
    from holdfast_trainer.planning.hardware import GPUS, Cluster

    if gpu not in GPUS:
        raise ConfigurationError(f"--gpu {gpu}: not a known kind: take one of {', '.join(GPUS)}")
    kind = GPUS[gpu]
    return Cluster(kind, gpus_per_node, node_gbps or kind.node_gbps, network_gbps or kind.network_gbps)


def _try_layout(config: Path | None, model: str | None, flags: list[str], *, json: bool) -> None:
    from holdfast_cli.dry_run import tell_dry_run
    from holdfast_trainer.planning.settings import load_layout

    tell_dry_run(load_layout(config, model, flags), json=json)


def _plan_layout(config: Path | None, model: str | None, flags: list[str], cluster: "Cluster", *, json: bool) -> None:
    from rich.console import Console

    from holdfast_cli.views.output import print_json
    from holdfast_cli.views.plan_view import plan_as_json, render_plan
    from holdfast_trainer.planning.plan import make_plan, pipeline_places
    from holdfast_trainer.planning.settings import load_layout

    settings = load_layout(config, model, flags)
    _expect_units(settings, cluster)
    made = make_plan(settings, cluster, pipeline_places(settings))
    Console(stderr=json).print(render_plan(made, cluster))
    if json:
        print_json(plan_as_json(made, cluster))


def _search_layouts(
    config: Path | None, model: str | None, flags: list[str], cluster: "Cluster", *, gpus: int, json: bool
) -> None:
    from rich.console import Console

    from holdfast_cli.views.output import print_json
    from holdfast_cli.views.plan_view import left_out, render_search, search_as_json
    from holdfast_trainer.planning.search import search
    from holdfast_trainer.planning.settings import load_search

    settings, parallel, memory = load_search(config, model, flags)
    _expect_units(settings, cluster)
    found = search(settings, cluster, gpus=gpus, parallel=parallel, memory=memory, best=_BEST)
    if not found.best:
        raise CommandError(
            f"no layout of --gpus {gpus} will do: {left_out(found, cluster)}: take more or larger GPUs, or change "
            "what [parallel] and train.global_batch demand"
        )
    Console(stderr=json).print(render_search(found, cluster))
    if json:
        print_json(search_as_json(found, cluster))


def _expect_units(settings: "TrainerConfig", cluster: "Cluster") -> None:
    try:
        cluster.peak_flops_per_s(settings.precision)
    except ValueError as error:
        raise ConfigurationError(f"--gpu: {error}: change --gpu or [precision]") from None
