"""``holdfast plan``: what a layout needs and costs, or which layouts fit."""

from rich.console import Console

from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.flags.planning import PlanFlags
from holdfast_cli.views.output import print_json
from holdfast_cli.views.plan_command import start_command
from holdfast_cli.views.plan_view import left_out, plan_as_json, render_plan, render_search, search_as_json
from holdfast_hooks import ConfigurationError as RefusedConfiguration
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.hardware import GPUS, Cluster
from holdfast_trainer.planning.plan import make_plan, pipeline_places
from holdfast_trainer.planning.search import search
from holdfast_trainer.planning.settings import load_layout, load_search, write_settings

_BEST = 5


def plan(flags: PlanFlags) -> None:
    """Plan one layout, or search many."""
    try:
        if flags.gpus is None:
            _plan_layout(flags, _cluster(flags))
        else:
            _search_layouts(flags, _cluster(flags), flags.gpus)
    except RefusedConfiguration as error:
        raise SettingsError("; ".join(str(error).splitlines())) from None


def _cluster(flags: PlanFlags) -> Cluster:
    if flags.gpu not in GPUS:
        raise SettingsError(f"--gpu {flags.gpu}: not a known kind: take one of {', '.join(GPUS)}")
    kind = GPUS[flags.gpu]
    node_gbps, network_gbps = flags.node_gbps or kind.node_gbps, flags.network_gbps or kind.network_gbps
    return Cluster(kind, flags.gpus_per_node, node_gbps, network_gbps)


def _plan_layout(flags: PlanFlags, cluster: Cluster) -> None:
    settings = load_layout(flags.config, flags.model, flags.context.args)
    _expect_units(settings, cluster)
    made = make_plan(settings, cluster, pipeline_places(settings))
    command = _command(flags, settings, cluster)
    Console(stderr=flags.json).print(render_plan(made, cluster, command), crop=False)
    if flags.json:
        print_json(plan_as_json(made, cluster))


def _search_layouts(flags: PlanFlags, cluster: Cluster, gpus: int) -> None:
    settings, parallel, memory = load_search(flags.config, flags.model, flags.context.args)
    _expect_units(settings, cluster)
    found = search(settings, cluster, gpus=gpus, parallel=parallel, memory=memory, best=_BEST)
    if not found.best:
        raise CommandError(
            f"no layout of --gpus {gpus} will do: {left_out(found, cluster)}: take more or larger GPUs, or change "
            "what [parallel] and train.global_batch demand"
        )
    command = _command(flags, found.best[0].config, cluster)
    Console(stderr=flags.json).print(render_search(found, cluster, command), crop=False)
    if flags.json:
        print_json(search_as_json(found, cluster, command))


def _command(flags: PlanFlags, settings: TrainerConfig, cluster: Cluster) -> list[str]:
    """Return the command that starts ``settings``, and write them if --write says so."""
    if flags.write is None:
        return start_command(settings, cluster, flags.config)
    write_settings(settings, flags.write)
    return start_command(settings, cluster, flags.write)


def _expect_units(settings: TrainerConfig, cluster: Cluster) -> None:
    try:
        cluster.peak_flops_per_s(settings.precision)
    except ValueError as error:
        raise SettingsError(f"--gpu: {error}: change --gpu or [precision]") from None
