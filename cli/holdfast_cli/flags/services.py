"""Flags of the two long-lived processes, for those who place them themselves."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer.models import OptionInfo

from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_cli.command_line.declaring import setting_option
from holdfast_cli.flags.common import (
    DEFAULT_DIRECTORY,
    LOCAL,
    METRICS,
    OUTPUT,
    RUN,
    MetricsAddress,
    MetricsConfig,
    argument,
    option,
)
from holdfast_cli.settings.schema import RunSettings, schema

_NODE, _CONSOLE = "Node", "Console"


def _as_setting(field: str) -> OptionInfo:
    """Return the flag of a setting of the run, for a process that takes it by itself."""
    return setting_option(schema()[field], "run")


_Redis = Annotated[str, _as_setting("redis_url")]
_RedisPasswordFile = Annotated[Path | None, _as_setting("redis_password_file")]
_RunKeyFile = Annotated[Path | None, option("--run-key-file FILE", RUN, unset="RUN.key in --directory")]
_MetricsPort = Annotated[
    int,
    option(
        "--metrics-port PORT", METRICS, about="Port on which /metrics is served. 0: any free one.", least=0, most=65535
    ),
]


@dataclass(frozen=True, kw_only=True)
class AgentFlags:
    """Serve one node of a run: start its ranks, watch them, keep their snapshots, write checkpoints."""

    run: Annotated[str, option("--run NAME", RUN)]
    """Name of the run to serve."""
    directory: Annotated[Path, option("--directory FOLDER", RUN)]
    """The run's folder: logs, incidents, the agent's record."""
    share_group: Annotated[bool, _as_setting("share_group")] = RunSettings.share_group
    preemption_grace_s: Annotated[float, _as_setting("preemption_grace_s")] = RunSettings.preemption_grace_s
    stop_on_sigusr1: Annotated[bool, _as_setting("stop_on_sigusr1")] = RunSettings.stop_on_sigusr1
    stop_on_sigusr2: Annotated[bool, _as_setting("stop_on_sigusr2")] = RunSettings.stop_on_sigusr2
    node: Annotated[str | None, option("--node NAME", _NODE, unset="its host name")] = None
    """Name of this node."""
    runtime_directory: Annotated[Path, option("--runtime-directory FOLDER", _NODE)]
    """Folder of this node for sockets, with a short path. The agent creates it with mode 0700."""
    address: Annotated[str, option("--address ADDRESS", _NODE)] = LOCAL
    """Address at which other nodes reach this one."""
    checkpoint_full_every: Annotated[int, _as_setting("checkpoint_full_every")] = RunSettings.checkpoint_full_every
    checkpoint_compression: Annotated[Compression, _as_setting("checkpoint_compression")] = (
        RunSettings.checkpoint_compression
    )
    checkpoint_staging: Annotated[Path | None, _as_setting("checkpoint_staging")] = None
    shm_directory: Annotated[Path, _as_setting("shm_directory")] = RunSettings.shm_directory
    topology: Annotated[str | None, _as_setting("topology")] = None
    replica_address: Annotated[str | None, _as_setting("replica_address")] = None
    redis: _Redis
    redis_password_file: _RedisPasswordFile = None
    run_key_file: _RunKeyFile = None
    """File with the key of the run, as `holdfast publish` has written it."""
    metrics_address: MetricsAddress = LOCAL
    metrics_config: MetricsConfig = None
    metrics_port: _MetricsPort = 0


@dataclass(frozen=True, kw_only=True)
class DaemonFlags:
    """Coordinate all runs of a Redis: judge them, keep incidents, send commands to agents.

    Start two daemons: one leads, and the other takes over if the first dies.
    """

    name: Annotated[str | None, option("--name NAME", _NODE, unset="its host name")] = None
    """Name of this daemon."""
    directory: Annotated[Path, option("--directory FOLDER", _NODE)]
    """Folder for the log of incidents."""
    share_group: Annotated[bool, _as_setting("share_group")] = RunSettings.share_group
    control: Annotated[Path, option("--control SOCKET", _NODE)]
    """Unix socket of the control API, for `holdfast status --control`."""
    lease_s: Annotated[float, option("--lease SECONDS", _NODE, least=0.1)] = 2.0
    """Seconds after which a standby takes over from a dead leader."""
    redis: _Redis
    redis_password_file: _RedisPasswordFile = None
    run_key_file: _RunKeyFile = None
    """File with the key of all runs of this Redis that it shall lead, as `holdfast publish` has written it."""
    metrics_address: MetricsAddress = LOCAL
    metrics_config: MetricsConfig = None
    metrics_port: _MetricsPort = 0
    console: Annotated[bool, option("--console/--no-console", _CONSOLE, unset="true")] = True
    """Serve the console, the page in a browser."""
    console_address: Annotated[str, _as_setting("console_address")] = RunSettings.console_address
    console_port: Annotated[int, _as_setting("console_port")] = RunSettings.console_port
    console_hosts: Annotated[list[str] | None, _as_setting("console_hosts")] = field(default_factory=list)
    console_cert_file: Annotated[Path | None, _as_setting("console_cert_file")] = None
    console_key_file: Annotated[Path | None, _as_setting("console_key_file")] = None
    console_client_ca: Annotated[Path | None, _as_setting("console_client_ca")] = None
    console_token_file: Annotated[
        Path | None, option("--console-token-file FILE", _CONSOLE, unset="console-tokens.json in --directory")
    ] = None
    """File that keeps the console's tokens, mode 0600."""


@dataclass(frozen=True, kw_only=True)
class ExportDashboardsFlags:
    """Write the Grafana dashboards, the alert rules, and configurations of Prometheus and Alertmanager into a folder.

    \b
    Examples:
      holdfast dashboards export
      holdfast dashboards export /etc/holdfast --directory /scratch/holdfast-runs
    """

    folder: Annotated[str, argument("FOLDER")] = "holdfast-dashboards"
    """Folder to write to. It is created if it is missing."""
    directory: Annotated[Path, option("--directory FOLDER", OUTPUT)] = DEFAULT_DIRECTORY
    """Folder of the runs that Prometheus finds by itself."""
    force: Annotated[bool, option("--force", OUTPUT)] = False
    """Replace files that exist."""


@dataclass(frozen=True, kw_only=True)
class MakeCertificatesFlags:
    """Make an authority, a certificate for servers and one for clients, and print the options that use them.

    The certificate for servers holds the names localhost, 127.0.0.1, ::1 and that of this host. Nothing is overwritten.

    \b
    Examples:
      holdfast certs init certs
      holdfast certs init certs --host head --host 10.0.0.1
    """

    folder: Annotated[Path, argument("FOLDER")]
    """Folder to write to, of mode 0700. It is created if it is missing."""
    hosts: Annotated[list[str] | None, option("--host NAME", OUTPUT)] = field(default_factory=list)
    """Further name or address of the servers. The flag can be repeated."""
