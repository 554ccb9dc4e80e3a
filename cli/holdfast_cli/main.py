"""Entry point of the ``holdfast`` command: the name of each command, its flags, and the module that does the work."""

from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer

from holdfast_cli.command_line.declaring import command_of, group_of
from holdfast_cli.command_line.help import HelpCommand, HelpGroup
from holdfast_cli.flags import checkpoints, guarding, live, planning, reports, services, start_flags, watch_flags

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
    Entry("run", start_flags.RunFlags, "run:run", _RUNS, _FOREIGN),
    Entry("observe", start_flags.ObserveFlags, "observe:observe", _RUNS, _FOREIGN),
    Entry("publish", start_flags.PublishFlags, "publish:publish", _RUNS, _FOREIGN),
    Entry("status", watch_flags.StatusFlags, "operate:status", _LOOK),
    Entry("top", watch_flags.TopFlags, "top:top", _LOOK),
    Entry("console", watch_flags.ConsoleFlags, "console:console", _LOOK),
    Entry("logs", watch_flags.LogsFlags, "logs:logs", _LOOK),
    Entry("stacks", live.StacksFlags, "operate:stacks", _LOOK),
    Entry("profile", live.ProfileFlags, "operate:profile", _LOOK),
    Entry("nodes", live.NodesFlags, "operate:nodes", _LOOK),
    Entry("analyze", watch_flags.AnalyzeFlags, "analyze:analyze", _LOOK),
    Entry("guard", guarding.GuardFlags, "services.guard_service:guard", _LOOK),
    Entry("spikes", watch_flags.SpikesFlags, "analyze:spikes", _LOOK),
    Entry("replay", watch_flags.ReplayFlags, "incident_commands:replay", _LOOK),
    Entry("report", reports.ReportFlags, "run_reports:report", _LOOK),
    Entry("compare", reports.CompareFlags, "run_reports:compare", _LOOK),
    Entry("stop", watch_flags.StopFlags, "operate:stop", _LOOK),
    Entry("plan", planning.PlanFlags, "plan_layout:plan", _TRY, planning.CONTEXT),
    Entry("demo", start_flags.DemoFlags, "demo:demo", _TRY),
    Entry("inject", watch_flags.InjectFlags, "operate:inject", _TRY),
    Entry("agent", services.AgentFlags, "services.agent_service:agent", _SERVE),
    Entry("daemon", services.DaemonFlags, "services.daemon_service:daemon", _SERVE),
    Entry("config show", start_flags.ShowConfigFlags, "config_commands:show", None, _FOREIGN),
    Entry("config check", start_flags.CheckConfigFlags, "config_commands:check"),
    Entry("notify test", watch_flags.NotifyTestFlags, "services.notify:test_channels"),
    Entry("incidents show", watch_flags.ShowIncidentFlags, "incident_commands:show"),
    Entry("incidents ack", watch_flags.AcknowledgeIncidentFlags, "incident_commands:acknowledge"),
    Entry("incidents export", watch_flags.ExportIncidentFlags, "incident_commands:export"),
    Entry("dashboards export", services.ExportDashboardsFlags, "services.dashboards:export"),
    Entry("certs init", services.MakeCertificatesFlags, "services.certs:init"),
    Entry("checkpoint now", checkpoints.TakeCheckpointFlags, "checkpoint:now"),
    Entry("checkpoint list", checkpoints.ListCheckpointsFlags, "checkpoint:list_checkpoints"),
    Entry("checkpoint show", checkpoints.ShowCheckpointFlags, "checkpoint:show"),
    Entry("checkpoint release", checkpoints.ReleaseCheckpointFlags, "checkpoint:release"),
    Entry("checkpoint verify", checkpoints.VerifyCheckpointFlags, "checkpoint:verify"),
    Entry("checkpoint drill", checkpoints.DrillCheckpointFlags, "checkpoint_state:drill_checkpoint"),
    Entry("checkpoint export", checkpoints.ExportCheckpointFlags, "checkpoint_state:export_step"),
    Entry("checkpoint import", checkpoints.ImportCheckpointFlags, "checkpoint_state:import_file"),
)
INCIDENTS = Entry("incidents", watch_flags.IncidentsFlags, "incident_commands:list_incidents", _LOOK)
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
        "certs": _group("certs", "Make certificates for the console, the metrics and Redis."),
        "notify": _group("notify", "Try the channels on which people are notified of a run."),
        "checkpoint": _group("checkpoint", "Take, list, verify, export and import checkpoints."),
    }
    app.add_typer(groups["config"], rich_help_panel=_TRY)
    app.add_typer(groups["notify"], rich_help_panel=_LOOK)
    app.add_typer(incidents, rich_help_panel=_LOOK)
    app.add_typer(groups["checkpoint"], rich_help_panel=_LOOK)
    app.add_typer(groups["dashboards"], rich_help_panel=_SERVE)
    app.add_typer(groups["certs"], rich_help_panel=_SERVE)
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
