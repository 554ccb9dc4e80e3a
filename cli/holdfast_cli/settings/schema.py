"""The settings of a run. Each is declared once: type, default, flag, key of the file, range and help.

The flags of `holdfast run`, `observe` and `publish`, the keys of `holdfast.toml`, the table in docs/configuration.md
and LocalRunOptions all come from here. This module is imported for every `--help`: it imports nothing large.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from signal import SIGUSR1, SIGUSR2, Signals
from typing import Any

from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_cli.settings.channels import ChannelSettings
from holdfast_cli.settings.setting import EVERYWHERE, Setting, declared_settings, setting
from holdfast_proto import run_files
from holdfast_proto.limits import STOP_GRACE_S
from holdfast_proto.v1.store_pb2 import LossAction
from holdfast_proto.vocabulary import DEFAULTS, MOST_BUDGET, NOTIFY_EVENTS, ROLL_BACKS


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
    ROLL_BACK = "roll_back"


class HangActionName(StrEnum):
    """What to do about a hang in a run that another launcher starts."""

    REPORT = "report"
    ABORT = "abort"
    RESTART = "restart"


class ExitCodeName(StrEnum):
    """What the exit code of `holdfast observe` tells."""

    LAUNCHER = "launcher"
    VERDICT = "verdict"


class QuarantineName(StrEnum):
    """What to do about a node that should not train."""

    REPORT = "report"
    ACT = "act"


class ModeName(StrEnum):
    """What the daemon may do by itself."""

    OBSERVE = "observe"
    ACT = "act"


def _action(tier: str, flag: str = "", **facts: Any) -> LossActionName:
    default = LossAction.Name(DEFAULTS[tier].action).removeprefix("LOSS_ACTION_")
    return setting(LossActionName[default], f"loss.{tier}", flag, by=EVERYWHERE, **facts)


def _budget(tier: str) -> int:
    return setting(DEFAULTS[tier].budget, f"loss.{tier}_budget", by=EVERYWHERE, least=0, most=MOST_BUDGET)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run as users give them. The docstring below a field is its help."""

    run: str | None = setting(
        None,
        "run.name",
        "--run NAME",
        by=EVERYWHERE,
        is_needed_to_publish=True,
        unset="that of existing checkpoints, else run-DATE-TIME",
        observe_help="Name of the run. [default: run-DATE-TIME]",
    )
    """Name of the run. If it has checkpoints, `holdfast run` and `publish` continue from the newest."""
    command: tuple[str, ...] = setting((), "run.command")
    """Command of one rank: the words after --."""
    ranks: int = setting(
        1, "run.ranks", "--ranks N", is_needed_to_publish=True, publish_flag="--ranks-per-node", least=1, most=4096
    )
    """Training processes on each node."""
    nodes: int = setting(
        1,
        "run.nodes",
        "--nodes N",
        by="publish observe",
        is_needed_to_publish=True,
        observe_help="Nodes of the run. Above 1, it needs --redis and --run. [default: 1; 1 to 100000]",
        least=1,
        most=100_000,
    )
    """Nodes that train. More agents than that are spares."""
    preflight: bool = setting(False, "run.preflight", "--preflight", by=EVERYWHERE)
    """Check each node before ranks start there. `holdfast run --preflight` alone checks this machine and prints a
    table."""
    directory: Path = setting(run_files.DIRECTORY, "run.directory", "--directory FOLDER", by=EVERYWHERE)
    """Folder that holds one folder per run. `holdfast publish` writes RUN.key there."""
    share_group: bool = setting(False, "run.share_group", "--share-group", by="run observe")
    """Let the group of the run's folder read its logs, incidents and checkpoints. Otherwise only you can."""
    preemption_grace_s: float = setting(
        STOP_GRACE_S, "run.preemption_grace_s", "--preemption-grace-s SECONDS", by="run", least=0
    )
    """Time from SIGTERM, or a warning before it, to the end, for a last checkpoint. 0: end immediately."""
    stop_on_sigusr1: bool = setting(True, "run.stop_on_sigusr1", "--stop-on-sigusr1", by="run")
    """Take SIGUSR1 as a warning before SIGTERM: stop after a last checkpoint. Otherwise ignore it."""
    stop_on_sigusr2: bool = setting(True, "run.stop_on_sigusr2", "--stop-on-sigusr2", by="run")
    """Take SIGUSR2 as a warning before SIGTERM: stop after a last checkpoint. Otherwise ignore it."""
    faults_allowed: bool = setting(False, "run.allow_faults", "--allow-faults")
    """Let `holdfast inject` harm the ranks of this run."""
    auto: bool = setting(
        False,
        "run.auto",
        "--auto",
        by="run observe",
        observe_help="Attach to the ranks without a line in their script.",
    )
    """Attach to the ranks without a line in their script. Holdfast then saves and restores nothing."""

    checkpoint_directory: str | None = setting(
        None,
        "checkpoints.location",
        "--checkpoints LOCATION",
        by=EVERYWHERE,
        is_needed_to_publish=True,
        unset="a folder in the run's folder",
        is_location=True,
    )
    """Folder or URL for checkpoints: s3://BUCKET/PREFIX, gs://... Several nodes must share the folder."""
    checkpoint_every: int = setting(100, "checkpoints.every", "--checkpoint-every STEPS", least=0, by=EVERYWHERE)
    """Steps between checkpoints, a multiple of --snapshot-every. 0: only at the end."""
    checkpoint_every_minutes: float = setting(
        0.0, "checkpoints.every_minutes", "--checkpoint-every-minutes MINUTES", least=0, by=EVERYWHERE
    )
    """Minutes without a checkpoint after which one is written. 0: only by steps."""
    checkpoint_full_every: int = setting(
        8, "checkpoints.full_every", "--checkpoint-full-every N", by="run observe", least=1
    )
    """Write a full checkpoint every N checkpoints; the others hold differences. 1: all are full."""
    checkpoint_compression: Compression = setting(
        Compression.AUTO, "checkpoints.compression", "--checkpoint-compression", by="run observe"
    )
    """Whether to compress checkpoints. auto: unless the ranks need the cores."""
    checkpoints_kept: int = setting(3, "checkpoints.keep", "--keep N", least=1, by=EVERYWHERE)
    """Number of checkpoints to keep."""
    checkpoints_secondary: str | None = setting(
        None, "checkpoints.secondary", "--checkpoints-secondary LOCATION", is_location=True, by=EVERYWHERE
    )
    """Folder or URL that gets a copy of every checkpoint in the background."""
    checkpoints_secondary_kept: int | None = setting(
        None,
        "checkpoints.secondary_keep",
        "--checkpoints-secondary-keep N",
        least=1,
        unset="that of --keep",
        by=EVERYWHERE,
    )
    """Number of copies to keep."""
    checkpoint_staging: Path | None = setting(
        None, "checkpoints.staging", "--checkpoint-staging FOLDER", by="run observe", unset="in the run's folder"
    )
    """Folder of this node for shards that wait for their upload to a URL."""
    checkpoint_upload_mb_per_s: float = setting(
        0.0, "checkpoints.upload_mb_per_s", "--checkpoint-upload-mb-per-s MB", least=0, by=EVERYWHERE
    )
    """Megabytes per second for all uploads of a node together. 0: no limit."""
    guard: Path | None = setting(None, "checkpoints.guard", "--guard DIR", by="run observe")
    """Folder in which the training framework writes its own checkpoints: judge each of them."""
    from_scratch: bool = setting(False, "checkpoints", "--from-scratch", by=EVERYWHERE)
    """Start from the seed although there are checkpoints. They stay until --keep new ones are written."""
    adopt: bool = setting(False, "checkpoints", "--adopt", by=EVERYWHERE)
    """Continue from the checkpoints of a run of another name."""
    continue_from: int | None = setting(
        None, "checkpoints", "--continue-from STEP", least=0, unset="the newest", by=EVERYWHERE
    )
    """Continue from the checkpoint of this step. Newer ones stay, and are not used."""

    snapshot_every: int = setting(10, "snapshots.every", "--snapshot-every STEPS", least=0, by=EVERYWHERE)
    """Steps between snapshots in memory. 0: none."""
    shm_directory: Path = setting(
        Path("/dev/shm"), "snapshots.shm_directory", "--shm-directory FOLDER", by="run observe"
    )
    """Memory file system for snapshots."""
    replicate_every_s: float = setting(
        10.0, "snapshots.replicate_every_s", "--replicate-every SECONDS", by="publish observe", least=0, most=86_400
    )
    """Seconds between two copies of all snapshots on partner nodes. 0: none. One node has no partner."""
    replica_mb_per_s: float = setting(
        250.0, "snapshots.replica_mb_per_s", "--replica-mb-per-s MB", by="publish observe", least=0, most=100_000
    )
    """Megabytes per second that a node sends to its partner. 0: no limit."""
    topology: str | None = setting(
        None, "snapshots.topology", "--topology DOMAIN", by="observe", unset="each node is one of its own"
    )
    """Failure domain of this node, such as its rack: the partner is in another one."""
    replica_address: str | None = setting(
        None,
        "snapshots.replica_address",
        "--replica-address HOST[:PORT]",
        by="observe",
        unset="--address of the agent, or that from which it reaches Redis; any free port",
    )
    """Address at which other nodes reach this one for replica snapshots."""

    preset: PresetName = setting(PresetName.DEFAULT, "detection.preset", "--preset", by=EVERYWHERE)
    """Shortest silence that is reported. fast: 1 s; default: 5 s; patient: 60 s."""

    mode: ModeName = setting(ModeName.ACT, "recovery.mode", "--mode")
    """observe: verdicts, evidence and metrics. act: restarts too."""
    restart_patience: float = setting(
        1.0,
        "recovery.restart_patience",
        "--restart-patience FACTOR",
        by=EVERYWHERE,
        observe_help="Factor on the time that a standstill without a certain sign of a fault lasts before "
        "--on-hang ends a rank. [default: 1]",
        least=0.01,
        most=1000,
    )
    """Factor on the time that a standstill without a certain sign of a fault lasts before a restart."""
    nccl_ras: bool = setting(True, "recovery.nccl_ras", "--nccl-ras", by=EVERYWHERE)
    """When a run on NCCL stands still, ask NCCL's RAS service, too, and show what it says."""
    on_hang: HangActionName = setting(HangActionName.REPORT, "recovery.on_hang", "--on-hang", by="observe")
    """report: incidents and evidence. abort: also end the hung rank, so that the launcher acts. restart: the same, but
    only while the launcher (torchrun) has restarts left."""
    restore: bool = setting(False, "recovery.restore", "--restore", by="observe")
    """Save and restore the state that the script gives to attach(). The flags of checkpoints and snapshots need it."""
    exit_code: ExitCodeName = setting(ExitCodeName.LAUNCHER, "recovery.exit_code", "--exit-code", by="observe")
    """launcher: the launcher's code. verdict: 75 if a requeue may help, 93 if not, else the launcher's."""
    min_replicas: int = setting(0, "recovery.min_replicas", "--min-replicas N", by="publish", least=0, most=100_000)
    """Continue with at least N data-parallel replicas while nodes are missing. 0: wait for the nodes."""
    resize_after_s: float = setting(
        60.0, "recovery.resize_after_s", "--resize-after-s SECONDS", by="publish", least=0, most=86_400
    )
    """Seconds to wait for a node before the run continues without it. A node is taken in again when it has been ready
    for as long."""
    quarantine: QuarantineName = setting(QuarantineName.REPORT, "recovery.quarantine", "--quarantine", by="publish")
    """What to do about a node that should not train. report: say so. act: at a start, let a spare take its place; it
    trains if there is none, or if steps would be lost."""

    loss_blip: LossActionName = _action("blip")
    """What to do about one outlying loss. roll_back is refused here."""
    loss_blip_budget: int = _budget("blip")
    """Blips that are tolerated before that."""
    loss_spike: LossActionName = _action("spike")
    """What to do about a loss that jumps, or that is high after a restart."""
    loss_spike_budget: int = _budget("spike")
    """Spikes that are tolerated before that."""
    loss_slow_rise: LossActionName = _action("slow_rise")
    """What to do about a loss that rises slowly. roll_back is refused here."""
    loss_slow_rise_budget: int = _budget("slow_rise")
    """Slow rises that are tolerated before that."""
    loss_divergence: LossActionName = _action("divergence")
    """What to do about a loss that does not come back."""
    loss_divergence_budget: int = _budget("divergence")
    """Losses in a row, from the one that shows a divergence, that are tolerated before that."""
    loss_non_finite: LossActionName = _action(
        "non_finite",
        "--on-nan",
        observe_help="What to do if the loss stays NaN or infinite. stop is taken as notify, and so is roll_back"
        " without --restore and --on-hang restart. [default: notify]",
    )
    """What to do if the loss stays NaN or infinite. stop: end the run without a checkpoint of that state. roll_back:
    return to an earlier state, and leave out the data since."""
    loss_non_finite_budget: int = _budget("non_finite")
    """Losses in a row that may be NaN or infinite before that."""
    loss_roll_backs: int = setting(ROLL_BACKS, "loss.roll_backs", by=EVERYWHERE, least=0, most=MOST_BUDGET)
    """Roll-backs of one start. After these, a bad loss stops the run."""
    loss_further_steps: int = setting(0, "loss.further_steps", by=EVERYWHERE, least=0, most=1_000_000)
    """Steps of data that a roll-back leaves out in addition to those up to the bad loss."""
    loss_leave_out: tuple[str, ...] = setting(
        (), "loss.leave_out", "--leave-out FIRST-LAST", by=EVERYWHERE, example='["41-52"]'
    )
    """Data that no step trains on, by the numbers of the steps that would. The flag can be repeated."""

    redis_url: str | None = setting(
        None,
        "store.redis",
        "--redis URL",
        by=EVERYWHERE,
        is_needed_to_publish=True,
        unset="a server that this run starts",
    )
    """Redis server: redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH,
    redis+sentinel://HOST:PORT,HOST:PORT/SERVICE or redis+cluster://HOST:PORT,HOST:PORT, without a password."""
    redis_password_file: Path | None = setting(
        None, "store.redis_password_file", "--redis-password-file FILE", by=EVERYWHERE
    )
    """File that holds the password of --redis."""
    run_key_file: Path | None = setting(
        None,
        "store.run_key_file",
        "--run-key-file FILE",
        by="observe publish",
        unset="RUN.key in --directory",
    )
    """File with the key that signs what the run's processes write to Redis. It is made if it is missing."""

    notify_on: tuple[str, ...] = setting(NOTIFY_EVENTS, "notify.on", by=EVERYWHERE, choices=NOTIFY_EVENTS)
    """What is reported; docs/notifications.md says what each word means."""
    notify_ignore: tuple[str, ...] = setting((), "notify.ignore", by=EVERYWHERE, example='["straggler"]')
    """Kinds of incidents that are not reported, as `holdfast_incidents_total` spells them: "straggler"."""
    notify_min_interval_s: float = setting(60.0, "notify.min_interval_s", by=EVERYWHERE, least=0, most=86_400)
    """Least time between two messages about incidents. Those in between become one message."""
    notify_console_url: str | None = setting(None, "notify.console_url", by=EVERYWHERE, unset="messages name a command")
    """Address of the console for links in messages, such as that of a proxy. Never with a token."""
    notify_heartbeat_url_file: Path | None = setting(
        None, "notify.heartbeat_url_file", by=EVERYWHERE, unset="no signs of life"
    )
    """File with the URL that expects signs of life."""
    notify_heartbeat_fail_url_file: Path | None = setting(
        None, "notify.heartbeat_fail_url_file", by=EVERYWHERE, unset="the URL for signs of life, and /fail"
    )
    """File with the URL for failures."""
    notify_heartbeat_every_s: float = setting(60.0, "notify.heartbeat_every_s", by=EVERYWHERE, least=1, most=86_400)
    """Time between two signs of life."""
    notify_channels: tuple[ChannelSettings, ...] = setting((), "notify", by=EVERYWHERE)
    """The channels: a table of the file for each."""

    console: bool = setting(True, "console.enabled", "--console", by="run observe")
    """Serve the console, the page in a browser. It needs the extra console of holdfast-torch."""
    console_port: int = setting(0, "console.port", "--console-port PORT", by="run observe", least=0, most=65_535)
    """Port of the console. 0: any free one."""
    console_address: str = setting("127.0.0.1", "console.address", "--console-address ADDRESS", by="run observe")
    """Address on which the console listens. Without a certificate it speaks plain HTTP: keep it local then."""
    console_cert_file: Path | None = setting(
        None, "console.cert_file", "--console-cert-file FILE", by="run observe", unset="plain HTTP"
    )
    """Certificate of the console in PEM, with its chain."""
    console_key_file: Path | None = setting(
        None, "console.key_file", "--console-key-file FILE", by="run observe", unset="plain HTTP"
    )
    """Key of the console's certificate in PEM, without a password."""
    console_client_ca: Path | None = setting(
        None, "console.client_ca", "--console-client-ca FILE", by="run observe", unset="none is asked for"
    )
    """Authority whose certificates clients of the console must have, in PEM."""
    console_hosts: tuple[str, ...] = setting(
        (), "console.hosts", "--console-host NAME", by="run observe", example='["https://holdfast.example.com"]'
    )
    """Further name by which browsers may call the console, such as that of a proxy; https://NAME: by that scheme
    alone. The flag can be repeated."""

    @property
    def tiers_rolled_back(self) -> list[str]:
        """Tiers of a bad loss for which the run is rolled back."""
        return [tier for tier in DEFAULTS if getattr(self, f"loss_{tier}") == LossActionName.ROLL_BACK]

    @property
    def preemption_warnings(self) -> list[Signals]:
        """Those of PREEMPTION_WARNINGS that ask for a planned stop."""
        stops = {SIGUSR1: self.stop_on_sigusr1, SIGUSR2: self.stop_on_sigusr2}
        return [number for number, is_on in stops.items() if is_on]


@cache
def schema() -> dict[str, Setting]:
    """Return field of RunSettings -> Setting, with type and default, in the order of the sections."""
    return dict(declared_settings(RunSettings))


def settings_of(command: str) -> Iterator[tuple[str, Setting]]:
    """Yield the field and the Setting of each flag that a command takes."""
    return ((field, setting) for field, setting in schema().items() if setting.flag and setting.is_taken_by(command))
