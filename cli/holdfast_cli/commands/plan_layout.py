"""``holdfast plan``: what a layout needs and costs, or which layouts fit."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.text import Text

from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.flags.planning import PlanFlags
from holdfast_cli.plans.detail_tables import Details, call_times, detail_lines
from holdfast_cli.plans.layout_tables import assumption_lines, render_plan, whole_run_lines
from holdfast_cli.plans.plan_object import costs_as_object, plan_as_object, search_as_object
from holdfast_cli.plans.run_comparison import (
    compare_numbers,
    comparison_as_object,
    flags_of_run,
    render_comparison,
)
from holdfast_cli.plans.search_table import left_out, render_search
from holdfast_cli.plans.start_command import differences, start_command
from holdfast_cli.reports.run_facts import find_source, read_facts
from holdfast_cli.views.output import print_json
from holdfast_core.texts.incident_lines import number_of
from holdfast_hooks import ConfigurationError as RefusedConfiguration
from holdfast_trainer.config import TrainerConfig, broken_rules, from_arguments
from holdfast_trainer.planning.formulas import explaining
from holdfast_trainer.planning.hardware import GPUS, Cluster
from holdfast_trainer.planning.pipeline_schedule import efficiencies
from holdfast_trainer.planning.plan import Plan, by_precision, fits, make_plan, pipeline_places, place_cost
from holdfast_trainer.planning.search import nearest, search
from holdfast_trainer.planning.settings import load_layout, load_search, nearest_name, write_settings
from holdfast_trainer.planning.whole_run import Failures, WholeRun, failures, scaling, whole_run

_BEST = 5


def plan(flags: PlanFlags) -> None:
    """Plan one layout, or search many."""
    try:
        if flags.context.args[:1] == ["compare"]:
            _compare(flags)
        elif flags.gpus is None:
            _plan_layout(flags)
        else:
            _search_layouts(flags, flags.gpus)
    except RefusedConfiguration as error:
        raise SettingsError("; ".join(str(error).splitlines())) from None


def _cluster(flags: PlanFlags, settings: TrainerConfig) -> Cluster:
    """Return the machines: those of --gpu, with what [hardware] says instead, and flags before both."""
    if flags.gpu not in GPUS:
        near = nearest_name(flags.gpu, GPUS)
        raise SettingsError(
            f"--gpu {flags.gpu}: not a known kind, the nearest is {near}: take one of {', '.join(GPUS)}"
        )
    given = {
        "gpus_per_node": flags.gpus_per_node,
        "node_gbps": flags.node_gbps,
        "network_gbps": flags.network_gbps,
    }
    changes = {key: value for key, value in given.items() if value}
    cluster = Cluster.of(GPUS[flags.gpu], settings.hardware.model_copy(update=changes))
    try:
        cluster.peak_flops_per_s(settings.precision)
    except ValueError as error:
        raise SettingsError(f"--gpu: {error}: change --gpu or [precision]") from None
    return cluster


def _plan_layout(flags: PlanFlags) -> None:
    settings, refusal = _layout(flags)
    cluster = _cluster(flags, settings)
    made = make_plan(settings, cluster, pipeline_places(settings))
    costs, run, details = _details(flags, made, cluster)
    near = "" if fits(made.memory, cluster) else _nearest_text(settings, nearest(settings, cluster))
    lines = render_plan(made, cluster, _command(flags, settings, cluster), costs=costs, run=run, refusal=refusal)
    lines += [Text(near)] if near else []
    lines += detail_lines(details) if flags.explain else []
    Console(stderr=flags.json).print(Group(*lines, *assumption_lines()), crop=False)
    if flags.json:
        costed = costs_as_object(costs, run, details, refusal=refusal, nearest=near)
        print_json({**plan_as_object(made, cluster), **costed})


def _details(flags: PlanFlags, made: Plan, cluster: Cluster) -> tuple[Failures, WholeRun | None, Details]:
    """Return what a whole run of a layout costs, and all that --explain shows."""
    config = made.config
    with explaining() as terms:
        place_cost(config, cluster, pipeline_places(config)[made.slowest], made.slowest)
        costs = failures(made, cluster)
        run = whole_run(made, cluster, tokens=flags.tokens, goodput=costs.goodput) if flags.tokens else None
    details: Details = {
        "precisions": list(by_precision(config, cluster)),
        "calls": list(call_times(made, cluster)),
        "pipeline": list(efficiencies(config.parallel.pp)) if config.parallel.pp > 1 else [],
        "scaling": list(scaling(made, cluster)),
        "formulas": terms,
    }
    return costs, run, details


def _layout(flags: PlanFlags) -> tuple[TrainerConfig, str]:
    """Return the layout to plan, and why the trainer refuses it. An error names the nearest layout, if one is near."""
    try:
        return load_layout(flags.config, flags.model, flags.context.args)
    except RefusedConfiguration as error:
        broken = broken_rules(error)
        if broken is None:
            raise
        found = nearest(broken.config, _cluster(flags, broken.config))
        near = [] if found is None else [_nearest_text(broken.config, found)]
        raise SettingsError("; ".join([*broken.problems, *near])) from None


def _nearest_text(settings: TrainerConfig, found: TrainerConfig | None) -> str:
    """Return the layout with as many GPUs that fits and differs least, or that there is none."""
    gpus = settings.parallel.ranks
    if found is None:
        return f"no layout of {number_of(gpus, 'GPU')} fits: `holdfast plan --gpus {2 * gpus}` searches those of more"
    return f"the nearest layout of {number_of(gpus, 'GPU')} that fits: {' '.join(differences(settings, found))}"


def _compare(flags: PlanFlags) -> None:
    """Show a run next to the plan of the layout that flags describe, or else of the one that it was started with."""
    names, given = _names_and_flags(flags.context.args[1:])
    if len(names) != 1:
        raise SettingsError("`holdfast plan compare` takes the name or the folder of one run")
    facts = read_facts(find_source(flags.directory, names[0]))
    has_layout = given or flags.model or flags.config
    settings = load_layout(flags.config, flags.model, given)[0] if has_layout else from_arguments(flags_of_run(facts))
    cluster = _cluster(flags, settings)
    made = make_plan(settings, cluster, pipeline_places(settings))
    rows = compare_numbers(made, facts)
    Console(stderr=flags.json).print(render_comparison(made, rows, facts), crop=False)
    if flags.json:
        print_json(comparison_as_object(rows))


def _names_and_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first flag, and the rest."""
    first = next((at for at, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def _search_layouts(flags: PlanFlags, gpus: int) -> None:
    settings, parallel, memory = load_search(flags.config, flags.model, flags.context.args)
    cluster = _cluster(flags, settings)
    found = search(settings, cluster, gpus=gpus, parallel=parallel, memory=memory, best=_BEST)
    if not found.best:
        fixed = " ".join(f"--parallel.{key} {value}" for key, value in parallel.items())
        fix = f"change {fixed}, or take other GPUs" if fixed else "take more or larger GPUs"
        raise CommandError(
            f"no layout of --gpus {gpus} will do: {left_out(found, cluster)}: {fix}, or change train.global_batch"
        )
    first = found.best[0]
    command = _command(flags, first.config, cluster)
    costs, run, details = _details(flags, first, cluster)
    lines = [*render_search(found, cluster, command), Text("the first in detail:", style="bold")]
    lines += [*whole_run_lines(first, costs, run), *(detail_lines(details) if flags.explain else [])]
    Console(stderr=flags.json).print(Group(*lines, *assumption_lines()), crop=False)
    if flags.json:
        costed = costs_as_object(costs, run, details, refusal="", nearest="")
        print_json({**search_as_object(found, cluster, command), "first": costed})


def _command(flags: PlanFlags, settings: TrainerConfig, cluster: Cluster) -> list[str]:
    """Return the command that starts ``settings``, and write them if --write says so."""
    if flags.write is None:
        return start_command(settings, cluster, flags.config)
    write_settings(settings, flags.write)
    return start_command(settings, cluster, flags.write)
