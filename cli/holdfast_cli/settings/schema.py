"""The settings of a run. Each is declared once: type, default, flag, key of the file, range and help.

The flags of `holdfast run`, `observe` and `publish`, the keys of `holdfast.toml`, the table in docs/configuration.md
and LocalRunOptions all come from here. This module is imported for every `--help`: it imports nothing large.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from signal import SIGUSR1, SIGUSR2, Signals
from types import NoneType
from typing import Annotated, get_args, get_origin, get_type_hints

from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_cli.settings.channels import ChannelSettings
from holdfast_cli.settings.setting import FileSection, Setting
from holdfast_proto.limits import STOP_GRACE_S
from holdfast_proto.vocabulary import DEFAULTS, MOST_BUDGET, NOTIFY_EVENTS

_EVERYWHERE = ("run", "observe", "publish")


class PresetName(StrEnum):
    """How long a rank may be silent before the daemon reports it."""

    FAST = "fast"
    DEFAULT = "default"
    PATIENT = "patient"


class LossActionName(StrEnum):
    """What to do about a bad loss."""

    NOTE = "note"
    NOTIFY = "notify"
    STOP = "stop"


class HangActionName(StrEnum):
    """What to do about a hang in a run that another launcher starts."""

    REPORT = "report"
    ABORT = "abort"


class ExitCodeName(StrEnum):
    """What the exit code of `holdfast observe` tells."""

    LAUNCHER = "launcher"
    VERDICT = "verdict"


class ModeName(StrEnum):
    """What the daemon may do by itself."""

    OBSERVE = "observe"
    ACT = "act"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run as users give them. The annotation of a field is its documentation."""

    run: Annotated[
        str | None,
        Setting(
            section=FileSection.RUN,
            name="name",
            flag="--run",
            metavar="NAME",
            help="Name of the run. If it has checkpoints, `holdfast run` and `publish` continue from the newest.",
            commands=_EVERYWHERE,
            required_by=("publish",),
            unset="that of existing checkpoints, else run-DATE-TIME",
            observe_help="Name of the run. [default: run-DATE-TIME]",
        ),
    ] = None
    command: Annotated[
        tuple[str, ...],
        Setting(section=FileSection.RUN, name="command", flag="", help="Command of one rank: the words after --."),
    ] = ()
    ranks: Annotated[
        int,
        Setting(
            section=FileSection.RUN,
            name="ranks",
            flag="--ranks",
            publish_flag="--ranks-per-node",
            metavar="N",
            help="Training processes on each node.",
            required_by=("publish",),
            least=1,
            most=4096,
        ),
    ] = 1
    nodes: Annotated[
        int,
        Setting(
            section=FileSection.RUN,
            name="nodes",
            flag="--nodes",
            metavar="N",
            help="Nodes that train. More agents than that are spares.",
            observe_help="Nodes of the run. Above 1, it needs --redis and --run. [default: 1; 1 to 100000]",
            commands=("publish", "observe"),
            required_by=("publish",),
            least=1,
            most=100_000,
        ),
    ] = 1
    directory: Annotated[
        Path,
        Setting(
            section=FileSection.RUN,
            name="directory",
            flag="--directory",
            metavar="FOLDER",
            help="Folder that holds one folder per run.",
            commands=("run", "observe"),
        ),
    ] = Path("holdfast-runs")
    preemption_grace_s: Annotated[
        float,
        Setting(
            section=FileSection.RUN,
            name="preemption_grace_s",
            flag="--preemption-grace-s",
            metavar="SECONDS",
            help="Time from SIGTERM, or a warning before it, to the end, for a last checkpoint. 0: end immediately.",
            commands=("run",),
            least=0,
        ),
    ] = STOP_GRACE_S
    stop_on_sigusr1: Annotated[
        bool,
        Setting(
            section=FileSection.RUN,
            name="stop_on_sigusr1",
            flag="--stop-on-sigusr1",
            help="Take SIGUSR1 as a warning before SIGTERM: stop after a last checkpoint. Otherwise ignore it.",
            commands=("run",),
        ),
    ] = True
    stop_on_sigusr2: Annotated[
        bool,
        Setting(
            section=FileSection.RUN,
            name="stop_on_sigusr2",
            flag="--stop-on-sigusr2",
            help="Take SIGUSR2 as a warning before SIGTERM: stop after a last checkpoint. Otherwise ignore it.",
            commands=("run",),
        ),
    ] = True
    faults_allowed: Annotated[
        bool,
        Setting(
            section=FileSection.RUN,
            name="allow_faults",
            flag="--allow-faults",
            help="Let `holdfast inject` harm the ranks of this run.",
        ),
    ] = False

    auto: Annotated[
        bool,
        Setting(
            section=FileSection.RUN,
            name="auto",
            flag="--auto",
            help="Attach to the ranks without a line in their script. Holdfast then saves and restores nothing.",
            commands=("run", "observe"),
            observe_help="Attach to the ranks without a line in their script.",
        ),
    ] = False

    checkpoint_directory: Annotated[
        str | None,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="location",
            flag="--checkpoints",
            metavar="LOCATION",
            help="Folder or URL for checkpoints: s3://BUCKET/PREFIX, gs://... Several nodes must share the folder.",
            required_by=("publish",),
            unset="a folder in the run's folder",
            is_location=True,
        ),
    ] = None
    checkpoint_every: Annotated[
        int,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="every",
            flag="--checkpoint-every",
            metavar="STEPS",
            help="Steps between checkpoints, a multiple of --snapshot-every. 0: only at the end.",
            least=0,
        ),
    ] = 100
    checkpoint_every_minutes: Annotated[
        float,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="every_minutes",
            flag="--checkpoint-every-minutes",
            metavar="MINUTES",
            help="Minutes without a checkpoint after which one is written. 0: only by steps.",
            least=0,
        ),
    ] = 0.0
    checkpoint_full_every: Annotated[
        int,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="full_every",
            flag="--checkpoint-full-every",
            metavar="N",
            help="Write a full checkpoint every N checkpoints; the others hold differences. 1: all are full.",
            commands=("run",),
            least=1,
        ),
    ] = 8
    checkpoint_compression: Annotated[
        Compression,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="compression",
            flag="--checkpoint-compression",
            help="Whether to compress checkpoints. auto: unless the ranks need the cores.",
            commands=("run",),
        ),
    ] = Compression.AUTO
    checkpoints_kept: Annotated[
        int,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="keep",
            flag="--keep",
            metavar="N",
            help="Number of checkpoints to keep.",
            least=1,
        ),
    ] = 3
    checkpoints_secondary: Annotated[
        str | None,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="secondary",
            flag="--checkpoints-secondary",
            metavar="LOCATION",
            help="Folder or URL that gets a copy of every checkpoint in the background.",
            is_location=True,
        ),
    ] = None
    checkpoints_secondary_kept: Annotated[
        int | None,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="secondary_keep",
            flag="--checkpoints-secondary-keep",
            metavar="N",
            help="Number of copies to keep.",
            least=1,
            unset="that of --keep",
        ),
    ] = None
    checkpoint_staging: Annotated[
        Path | None,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="staging",
            flag="--checkpoint-staging",
            metavar="FOLDER",
            help="Folder of this node for shards that wait for their upload to a URL.",
            commands=("run",),
            unset="in the run's folder",
        ),
    ] = None
    checkpoint_upload_mb_per_s: Annotated[
        float,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="upload_mb_per_s",
            flag="--checkpoint-upload-mb-per-s",
            metavar="MB",
            help="Megabytes per second for all uploads of a node together. 0: no limit.",
            least=0,
        ),
    ] = 0.0
    guard: Annotated[
        Path | None,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="guard",
            flag="--guard",
            metavar="DIR",
            help="Folder in which the training framework writes its own checkpoints: judge each of them.",
            commands=("run", "observe"),
        ),
    ] = None
    from_scratch: Annotated[
        bool,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="",
            flag="--from-scratch",
            help="Start from the seed although there are checkpoints. They stay until --keep new ones are written.",
        ),
    ] = False
    adopt: Annotated[
        bool,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="",
            flag="--adopt",
            help="Continue from the checkpoints of a run of another name.",
        ),
    ] = False

    continue_from: Annotated[
        int | None,
        Setting(
            section=FileSection.CHECKPOINTS,
            name="",
            flag="--continue-from",
            metavar="STEP",
            help="Continue from the checkpoint of this step. Newer ones stay, and are not used.",
            least=0,
            unset="the newest",
        ),
    ] = None

    snapshot_every: Annotated[
        int,
        Setting(
            section=FileSection.SNAPSHOTS,
            name="every",
            flag="--snapshot-every",
            metavar="STEPS",
            help="Steps between snapshots in memory. 0: none.",
            least=0,
        ),
    ] = 10
    shm_directory: Annotated[
        Path,
        Setting(
            section=FileSection.SNAPSHOTS,
            name="shm_directory",
            flag="--shm-directory",
            metavar="FOLDER",
            help="Memory file system for snapshots.",
            commands=("run",),
        ),
    ] = Path("/dev/shm")

    preset: Annotated[
        PresetName,
        Setting(
            section=FileSection.DETECTION,
            name="preset",
            flag="--preset",
            help="Shortest silence that is reported. fast: 1 s; default: 5 s; patient: 60 s.",
            commands=_EVERYWHERE,
        ),
    ] = PresetName.DEFAULT

    mode: Annotated[
        ModeName,
        Setting(
            section=FileSection.RECOVERY,
            name="mode",
            flag="--mode",
            help="observe: verdicts, evidence and metrics. act: restarts too.",
        ),
    ] = ModeName.ACT
    restart_patience: Annotated[
        float,
        Setting(
            section=FileSection.RECOVERY,
            name="restart_patience",
            flag="--restart-patience",
            metavar="FACTOR",
            help="Factor on the time that a standstill without a certain sign of a fault lasts before a restart.",
            commands=_EVERYWHERE,
            observe_help="Factor on the time that a standstill without a certain sign of a fault lasts before "
            "--on-hang abort ends a rank. [default: 1]",
            least=0.01,
            most=1000,
        ),
    ] = 1.0
    nccl_ras: Annotated[
        bool,
        Setting(
            section=FileSection.RECOVERY,
            name="nccl_ras",
            flag="--nccl-ras",
            help="When a run on NCCL stands still, ask NCCL's RAS service, too, and show what it says.",
            commands=_EVERYWHERE,
        ),
    ] = True
    on_hang: Annotated[
        HangActionName,
        Setting(
            section=FileSection.RECOVERY,
            name="on_hang",
            flag="--on-hang",
            help="report: incidents and evidence. abort: also end the hung rank, so that the launcher acts.",
            commands=("observe",),
        ),
    ] = HangActionName.REPORT
    exit_code: Annotated[
        ExitCodeName,
        Setting(
            section=FileSection.RECOVERY,
            name="exit_code",
            flag="--exit-code",
            help="launcher: the launcher's code. verdict: 75 if a requeue may help, 93 if not, else the launcher's.",
            commands=("observe",),
        ),
    ] = ExitCodeName.LAUNCHER

    loss_blip: Annotated[
        LossActionName,
        Setting(
            section=FileSection.LOSS,
            name="blip",
            flag="",
            help="What to do about one outlying loss.",
            commands=_EVERYWHERE,
        ),
    ] = LossActionName.NOTE
    loss_blip_budget: Annotated[
        int,
        Setting(
            section=FileSection.LOSS,
            name="blip_budget",
            flag="",
            help="Blips that are tolerated before that.",
            commands=_EVERYWHERE,
            least=0,
            most=MOST_BUDGET,
        ),
    ] = DEFAULTS["blip"].budget
    loss_spike: Annotated[
        LossActionName,
        Setting(
            section=FileSection.LOSS,
            name="spike",
            flag="",
            help="What to do about a loss that jumps, or that is high after a restart.",
            commands=_EVERYWHERE,
        ),
    ] = LossActionName.NOTIFY
    loss_spike_budget: Annotated[
        int,
        Setting(
            section=FileSection.LOSS,
            name="spike_budget",
            flag="",
            help="Spikes that are tolerated before that.",
            commands=_EVERYWHERE,
            least=0,
            most=MOST_BUDGET,
        ),
    ] = DEFAULTS["spike"].budget
    loss_slow_rise: Annotated[
        LossActionName,
        Setting(
            section=FileSection.LOSS,
            name="slow_rise",
            flag="",
            help="What to do about a loss that rises slowly.",
            commands=_EVERYWHERE,
        ),
    ] = LossActionName.NOTIFY
    loss_slow_rise_budget: Annotated[
        int,
        Setting(
            section=FileSection.LOSS,
            name="slow_rise_budget",
            flag="",
            help="Slow rises that are tolerated before that.",
            commands=_EVERYWHERE,
            least=0,
            most=MOST_BUDGET,
        ),
    ] = DEFAULTS["slow_rise"].budget
    loss_divergence: Annotated[
        LossActionName,
        Setting(
            section=FileSection.LOSS,
            name="divergence",
            flag="",
            help="What to do about a loss that does not come back.",
            commands=_EVERYWHERE,
        ),
    ] = LossActionName.NOTIFY
    loss_divergence_budget: Annotated[
        int,
        Setting(
            section=FileSection.LOSS,
            name="divergence_budget",
            flag="",
            help="Losses in a row, from the one that shows a divergence, that are tolerated before that.",
            commands=_EVERYWHERE,
            least=0,
            most=MOST_BUDGET,
        ),
    ] = DEFAULTS["divergence"].budget
    loss_non_finite: Annotated[
        LossActionName,
        Setting(
            section=FileSection.LOSS,
            name="non_finite",
            flag="--on-nan",
            help="What to do if the loss stays NaN or infinite. stop: end the run without a checkpoint of that state.",
            commands=_EVERYWHERE,
            observe_help="What to do if the loss stays NaN or infinite. stop is taken as notify. [default: notify]",
        ),
    ] = LossActionName.NOTIFY
    loss_non_finite_budget: Annotated[
        int,
        Setting(
            section=FileSection.LOSS,
            name="non_finite_budget",
            flag="",
            help="Losses in a row that may be NaN or infinite before that.",
            commands=_EVERYWHERE,
            least=0,
            most=MOST_BUDGET,
        ),
    ] = DEFAULTS["non_finite"].budget

    redis_url: Annotated[
        str | None,
        Setting(
            section=FileSection.STORE,
            name="redis",
            flag="--redis",
            metavar="URL",
            help="Redis server: redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH, without a password.",
            commands=_EVERYWHERE,
            required_by=("publish",),
            unset="a server that this run starts",
        ),
    ] = None
    redis_password_file: Annotated[
        Path | None,
        Setting(
            section=FileSection.STORE,
            name="redis_password_file",
            flag="--redis-password-file",
            metavar="FILE",
            help="File that holds the password of --redis.",
            commands=_EVERYWHERE,
        ),
    ] = None

    notify_on: Annotated[
        tuple[str, ...],
        Setting(
            section=FileSection.NOTIFY,
            name="on",
            flag="",
            help="What is reported; docs/notifications.md says what each word means.",
            commands=_EVERYWHERE,
            choices=NOTIFY_EVENTS,
        ),
    ] = NOTIFY_EVENTS
    notify_ignore: Annotated[
        tuple[str, ...],
        Setting(
            section=FileSection.NOTIFY,
            name="ignore",
            flag="",
            help='Kinds of incidents that are not reported, as `holdfast_incidents_total` spells them: "straggler".',
            commands=_EVERYWHERE,
            example='["straggler"]',
        ),
    ] = ()
    notify_min_interval_s: Annotated[
        float,
        Setting(
            section=FileSection.NOTIFY,
            name="min_interval_s",
            flag="",
            help="Least time between two messages about incidents. Those in between become one message.",
            commands=_EVERYWHERE,
            least=0,
            most=86400,
        ),
    ] = 60.0
    notify_console_url: Annotated[
        str | None,
        Setting(
            section=FileSection.NOTIFY,
            name="console_url",
            flag="",
            help="Address of the console for links in messages, such as that of a proxy. Never with a token.",
            commands=_EVERYWHERE,
            unset="messages name a command",
        ),
    ] = None
    notify_heartbeat_url_file: Annotated[
        Path | None,
        Setting(
            section=FileSection.NOTIFY,
            name="heartbeat_url_file",
            flag="",
            help="File with the URL that expects signs of life.",
            commands=_EVERYWHERE,
            unset="no signs of life",
        ),
    ] = None
    notify_heartbeat_fail_url_file: Annotated[
        Path | None,
        Setting(
            section=FileSection.NOTIFY,
            name="heartbeat_fail_url_file",
            flag="",
            help="File with the URL for failures.",
            commands=_EVERYWHERE,
            unset="the URL for signs of life, and /fail",
        ),
    ] = None
    notify_heartbeat_every_s: Annotated[
        float,
        Setting(
            section=FileSection.NOTIFY,
            name="heartbeat_every_s",
            flag="",
            help="Time between two signs of life.",
            commands=_EVERYWHERE,
            least=1,
            most=86400,
        ),
    ] = 60.0
    notify_channels: Annotated[
        tuple[ChannelSettings, ...],
        Setting(
            section=FileSection.NOTIFY,
            name="",
            flag="",
            help="The channels: a table of the file for each.",
            commands=_EVERYWHERE,
        ),
    ] = ()
    console: Annotated[
        bool,
        Setting(
            section=FileSection.CONSOLE,
            name="enabled",
            flag="--console",
            help="Serve the console, the page in a browser. It needs the extra console of holdfast-torch.",
            commands=("run", "observe"),
        ),
    ] = True
    console_port: Annotated[
        int,
        Setting(
            section=FileSection.CONSOLE,
            name="port",
            flag="--console-port",
            metavar="PORT",
            help="Port of the console. 0: any free one.",
            commands=("run", "observe"),
            least=0,
            most=65535,
        ),
    ] = 0
    console_address: Annotated[
        str,
        Setting(
            section=FileSection.CONSOLE,
            name="address",
            flag="--console-address",
            metavar="ADDRESS",
            help="Address on which the console listens. It speaks plain HTTP: keep it local, and use a tunnel.",
            commands=("run", "observe"),
        ),
    ] = "127.0.0.1"
    console_hosts: Annotated[
        tuple[str, ...],
        Setting(
            section=FileSection.CONSOLE,
            name="hosts",
            flag="--console-host",
            metavar="NAME",
            help="Further name by which browsers may call the console, such as that of a proxy; https://NAME: by that"
            " scheme alone. The flag can be repeated.",
            commands=("run", "observe"),
            example='["https://holdfast.example.com"]',
        ),
    ] = ()

    @property
    def preemption_warnings(self) -> list[Signals]:
        """Those of PREEMPTION_WARNINGS that ask for a planned stop."""
        stops = {SIGUSR1: self.stop_on_sigusr1, SIGUSR2: self.stop_on_sigusr2}
        return [number for number, is_on in stops.items() if is_on]


@cache
def schema() -> dict[str, Setting]:
    """Return field of RunSettings -> Setting, with type and default, in the order of the sections."""
    return dict(_declared())


def settings_of(command: str) -> Iterator[tuple[str, Setting]]:
    """Yield the field and the Setting of each flag that a command takes."""
    return ((field, setting) for field, setting in schema().items() if setting.flag and setting.is_taken_by(command))


def _declared() -> Iterator[tuple[str, Setting]]:
    for field, hint in get_type_hints(RunSettings, include_extras=True).items():
        annotated, setting = get_args(hint)
        value_type = next((one for one in get_args(annotated) if one is not NoneType), annotated)
        if get_origin(annotated) is tuple:
            value_type = annotated
        yield field, replace(setting, value_type=value_type, default=getattr(RunSettings, field))
