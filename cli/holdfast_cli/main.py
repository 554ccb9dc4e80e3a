"""Entry point of the ``holdfast`` command: the name of each command, its flags, and the module that does the work."""

from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer

from holdfast_cli.command_line.declaring import command_of, group_of
from holdfast_cli.command_line.help import HelpCommand, HelpGroup
from holdfast_cli.flags import checkpoints, guarding, live, planning, reports, runs, services, watching

_COMMANDS = "holdfast_cli.commands"
_FOREIGN = {"allow_interspersed_args": False}
"""Everything after the first word that is no option of ours belongs to the trainer."""


def _group(name: str | None, about: str | None, **others: Any) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=not others.get("invoke_without_command", False),
        cls=HelpGroup,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **others,
    )


class Entry(NamedTuple):
    """A command: its name, its flags, and the function in ``commands`` that does the work."""

    name: str
    """Words after ``holdfast``."""
    flags: type[Any]
    work: str
    """MODULE:FUNCTION."""
    panel: str | None = None
    """Heading over it in the help of its group."""
    context: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple has no default factory, and nobody changes it


_RUNS, _LOOK, _TRY, _SERVE = "Start a run", "Look at a run, and control it", "Plan and try", "Run the services yourself"
ENTRIES = (
    Entry("run", runs.RunFlags, "run:run", _RUNS, _FOREIGN),
    Entry("observe", runs.ObserveFlags, "observe:observe", _RUNS, _FOREIGN),
    Entry("publish", runs.PublishFlags, "publish:publish", _RUNS, _FOREIGN),
    Entry("status", watching.StatusFlags, "operate:status", _LOOK),
    Entry("top", watching.TopFlags, "top:top", _LOOK),
    Entry("console", watching.ConsoleFlags, "console:console", _LOOK),
    Entry("logs", watching.LogsFlags, "logs:logs", _LOOK),
    Entry("stacks", live.StacksFlags, "stacks:stacks", _LOOK),
    Entry("profile", live.ProfileFlags, "profile:profile", _LOOK),
    Entry("analyze", watching.AnalyzeFlags, "analyze:analyze", _LOOK),
    Entry("guard", guarding.GuardFlags, "guard:guard", _LOOK),
    Entry("spikes", watching.SpikesFlags, "spikes:spikes", _LOOK),
    Entry("replay", watching.ReplayFlags, "replay:replay", _LOOK),
    Entry("report", reports.ReportFlags, "report:report", _LOOK),
    Entry("compare", reports.CompareFlags, "compare:compare", _LOOK),
    Entry("stop", watching.StopFlags, "operate:stop", _LOOK),
    Entry("plan", planning.PlanFlags, "plan:plan", _TRY, planning.CONTEXT),
    Entry("demo", runs.DemoFlags, "demo:demo", _TRY),
    Entry("inject", watching.InjectFlags, "inject:inject", _TRY),
    Entry("agent", services.AgentFlags, "agent:agent", _SERVE),
    Entry("daemon", services.DaemonFlags, "daemon:daemon", _SERVE),
    Entry("config show", runs.ShowConfigFlags, "config:show", None, _FOREIGN),
    Entry("config check", runs.CheckConfigFlags, "config:check"),
    Entry("notify test", watching.NotifyTestFlags, "notify:test_channels"),
    Entry("incidents show", watching.ShowIncidentFlags, "incidents:show"),
    Entry("incidents ack", watching.AcknowledgeIncidentFlags, "incidents:acknowledge"),
    Entry("incidents export", watching.ExportIncidentFlags, "incidents:export"),
    Entry("dashboards export", services.ExportDashboardsFlags, "dashboards:export"),
    Entry("checkpoint now", checkpoints.TakeCheckpointFlags, "checkpoint:now"),
    Entry("checkpoint list", checkpoints.ListCheckpointsFlags, "checkpoint:list_checkpoints"),
    Entry("checkpoint show", checkpoints.ShowCheckpointFlags, "checkpoint:show"),
    Entry("checkpoint release", checkpoints.ReleaseCheckpointFlags, "checkpoint:release"),
    Entry("checkpoint verify", checkpoints.VerifyCheckpointFlags, "checkpoint:verify"),
    Entry("checkpoint drill", checkpoints.DrillCheckpointFlags, "checkpoint_state:drill_checkpoint"),
    Entry("checkpoint export", checkpoints.ExportCheckpointFlags, "checkpoint_state:export_step"),
    Entry("checkpoint import", checkpoints.ImportCheckpointFlags, "checkpoint_state:import_file"),
)
INCIDENTS = Entry("incidents", watching.IncidentsFlags, "incidents:list_incidents", _LOOK)
"""A group that works without a sub-command too."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"holdfast {version('holdfast-torch')}")
        raise typer.Exit


def _app() -> typer.Typer:
    app = _group("holdfast", "Keep a distributed PyTorch training run alive, and explain what went wrong.")
    incidents = _group("incidents", INCIDENTS.flags.__doc__, invoke_without_command=True)
    incidents.callback()(group_of(INCIDENTS.flags, f"{_COMMANDS}.{INCIDENTS.work}"))
    groups = {
        "": app,
        "incidents": incidents,
        "config": _group("config", "Show or check the settings of a run: flags, file and defaults."),
        "dashboards": _group("dashboards", "Write the files for Grafana, Prometheus and Alertmanager."),
        "notify": _group("notify", "Try the channels on which people are notified of a run."),
        "checkpoint": _group("checkpoint", "Take, list, verify, export and import checkpoints."),
    }
    app.add_typer(groups["config"], rich_help_panel=_TRY)
    app.add_typer(groups["notify"], rich_help_panel=_LOOK)
    app.add_typer(incidents, rich_help_panel=_LOOK)
    app.add_typer(groups["checkpoint"], rich_help_panel=_LOOK)
    app.add_typer(groups["dashboards"], rich_help_panel=_SERVE)
    for entry in ENTRIES:
        group_name, _, name = entry.name.rpartition(" ")
        declare = groups[group_name].command(
            name, cls=HelpCommand, rich_help_panel=entry.panel, context_settings=entry.context
        )
        declare(command_of(entry.flags, f"{_COMMANDS}.{entry.work}"))
    return app


app = _app()


@app.callback()
def holdfast(
    is_version_asked: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep a distributed PyTorch training run alive, and explain what went wrong."""


def main() -> None:
    """Run the command line."""
    app()
