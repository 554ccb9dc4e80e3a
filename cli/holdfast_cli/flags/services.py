"""Flags of the two long-lived processes, for those who place them themselves."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from typer.models import OptionInfo

from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_cli.flags.common import DEFAULT_DIRECTORY, OUTPUT, RUN
from holdfast_cli.settings.schema import RunSettings, schema

_NODE, _METRICS, _CONSOLE = "Node", "Metrics", "Console"


def _as_setting(field: str) -> OptionInfo:
    """Return the flag of a setting of the run, for a process that takes it by itself."""
    setting = schema()[field]
    option: OptionInfo = typer.Option(
        *setting.flags("run"),
        help=setting.help,
        metavar=setting.metavar,
        min=setting.least,
        max=setting.most,
        rich_help_panel=setting.section.title(),
    )
    return option


_Redis = Annotated[str, _as_setting("redis_url")]
_RedisPasswordFile = Annotated[Path | None, _as_setting("redis_password_file")]
_MetricsAddress = Annotated[
    str, typer.Option(help="Address on which /metrics is served.", metavar="ADDRESS", rich_help_panel=_METRICS)
]
_MetricsPort = Annotated[
    int,
    typer.Option(
        help="Port on which /metrics is served. 0: any free one.",
        metavar="PORT",
        min=0,
        max=65535,
        rich_help_panel=_METRICS,
    ),
]
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class AgentFlags:
    """Serve one node of a run: start its ranks, watch them, keep their snapshots, write checkpoints."""

    run: Annotated[str, typer.Option(help="Name of the run to serve.", metavar="NAME", rich_help_panel=RUN)]
    directory: Annotated[
        Path,
        typer.Option(
            help="The run's folder: logs, incidents, the agent's record.", metavar="FOLDER", rich_help_panel=RUN
        ),
    ]
    preemption_grace_s: Annotated[float, _as_setting("preemption_grace_s")] = RunSettings.preemption_grace_s
    stop_on_sigusr1: Annotated[bool, _as_setting("stop_on_sigusr1")] = RunSettings.stop_on_sigusr1
    stop_on_sigusr2: Annotated[bool, _as_setting("stop_on_sigusr2")] = RunSettings.stop_on_sigusr2
    node: Annotated[
        str | None,
        typer.Option(help="Name of this node.", show_default="its host name", metavar="NAME", rich_help_panel=_NODE),
    ] = None
    runtime_directory: Annotated[
        Path,
        typer.Option(
            help="Folder of this node for sockets, with a short path. The agent creates it with mode 0700.",
            metavar="FOLDER",
            rich_help_panel=_NODE,
        ),
    ]
    address: Annotated[
        str,
        typer.Option(help="Address at which other nodes reach this one.", metavar="ADDRESS", rich_help_panel=_NODE),
    ] = _LOCAL
    checkpoint_full_every: Annotated[int, _as_setting("checkpoint_full_every")] = RunSettings.checkpoint_full_every
    checkpoint_compression: Annotated[Compression, _as_setting("checkpoint_compression")] = (
        RunSettings.checkpoint_compression
    )
    checkpoint_staging: Annotated[Path | None, _as_setting("checkpoint_staging")] = None
    shm_directory: Annotated[Path, _as_setting("shm_directory")] = RunSettings.shm_directory
    redis: _Redis
    redis_password_file: _RedisPasswordFile = None
    metrics_address: _MetricsAddress = _LOCAL
    metrics_port: _MetricsPort = 0


@dataclass(frozen=True, kw_only=True)
class DaemonFlags:
    """Coordinate all runs of a Redis: judge them, keep incidents, send commands to agents.

    Start two daemons: one leads, and the other takes over if the first dies.
    """

    name: Annotated[
        str | None,
        typer.Option(help="Name of this daemon.", show_default="its host name", metavar="NAME", rich_help_panel=_NODE),
    ] = None
    directory: Annotated[
        Path, typer.Option(help="Folder for the log of incidents.", metavar="FOLDER", rich_help_panel=_NODE)
    ]
    control: Annotated[
        Path,
        typer.Option(
            help="Unix socket of the control API, for `holdfast status --control`.",
            metavar="SOCKET",
            rich_help_panel=_NODE,
        ),
    ]
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease",
            help="Seconds after which a standby takes over from a dead leader.",
            metavar="SECONDS",
            min=0.1,
            rich_help_panel=_NODE,
        ),
    ] = 2.0
    redis: _Redis
    redis_password_file: _RedisPasswordFile = None
    metrics_address: _MetricsAddress = _LOCAL
    metrics_port: _MetricsPort = 0
    console: Annotated[
        bool,
        typer.Option(
            "--console/--no-console",
            help="Serve the console, the page in a browser.",
            show_default="true",
            rich_help_panel=_CONSOLE,
        ),
    ] = True
    console_address: Annotated[str, _as_setting("console_address")] = RunSettings.console_address
    console_port: Annotated[int, _as_setting("console_port")] = RunSettings.console_port
    console_hosts: Annotated[list[str] | None, _as_setting("console_hosts")] = field(default_factory=list)
    console_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File that keeps the console's tokens, mode 0600.",
            show_default="console-tokens.json in --directory",
            metavar="FILE",
            rich_help_panel=_CONSOLE,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExportDashboardsFlags:
    """Write the Grafana dashboards, the alert rules, and configurations of Prometheus and Alertmanager into a folder.

    \b
    Examples:
      holdfast dashboards export
      holdfast dashboards export /etc/holdfast --directory /scratch/holdfast-runs
    """

    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder to write to. It is created if it is missing.")
    ] = "holdfast-dashboards"
    directory: Annotated[
        Path,
        typer.Option(
            help="Folder of the runs that Prometheus finds by itself.", metavar="FOLDER", rich_help_panel=OUTPUT
        ),
    ] = DEFAULT_DIRECTORY
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.", rich_help_panel=OUTPUT)] = False
