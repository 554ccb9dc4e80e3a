"""``holdfast run``: a whole run on this machine."""

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast_cli.commands.options import (
    DEFAULT_DIRECTORY,
    DEFAULT_PREEMPTION_GRACE_S,
    DEFAULT_SHM_DIRECTORY,
    AllowFaults,
    CheckpointEvery,
    CheckpointEveryMinutes,
    Checkpoints,
    CheckpointsSecondary,
    CheckpointsSecondaryKeep,
    CheckpointStaging,
    Directory,
    Json,
    Keep,
    PreemptionGrace,
    RankCommand,
    Redis,
    RedisPasswordFile,
    ShmDirectory,
    SnapshotEvery,
)
from holdfast_proto.v1 import store_pb2

if TYPE_CHECKING:
    from holdfast_cli.local_run_options import LocalRunOptions


class PresetName(StrEnum):
    """How soon silence is judged."""

    FAST = "fast"
    DEFAULT = "default"
    PATIENT = "patient"


class ModeName(StrEnum):
    """How far the daemon may go by itself."""

    OBSERVE = "observe"
    ACT = "act"


PRESETS = {
    PresetName.FAST: store_pb2.PRESET_FAST,
    PresetName.DEFAULT: store_pb2.PRESET_DEFAULT,
    PresetName.PATIENT: store_pb2.PRESET_PATIENT,
}
MODES = {
    ModeName.OBSERVE: store_pb2.MODE_OBSERVE,
    ModeName.ACT: store_pb2.MODE_ACT,
}
Preset = Annotated[
    PresetName, typer.Option(help="Shortest silence that is judged: fast 1 s, default 5 s, patient 60 s.")
]
Mode = Annotated[ModeName, typer.Option(help="observe: verdicts, evidence and metrics; act: and restarts.")]


def run(
    command: RankCommand,
    *,
    name: Annotated[
        str | None,
        typer.Option("--run", help="Name of the run; a name used before goes on from its newest checkpoint."),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Training processes.", min=1)] = 1,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
    checkpoint_every: CheckpointEvery = 100,
    checkpoint_every_minutes: CheckpointEveryMinutes = 0.0,
    checkpoint_full_every: Annotated[
        int, typer.Option(help="Every so many checkpoints a full one, differences to it between; 1: all full.", min=1)
    ] = 8,
    snapshot_every: SnapshotEvery = 10,
    keep: Keep = 3,
    checkpoint_staging: CheckpointStaging = None,
    checkpoints_secondary: CheckpointsSecondary = None,
    checkpoints_secondary_keep: CheckpointsSecondaryKeep = None,
    preemption_grace_s: PreemptionGrace = DEFAULT_PREEMPTION_GRACE_S,
    preset: Preset = PresetName.DEFAULT,
    mode: Mode = ModeName.ACT,
    allow_faults: AllowFaults = False,
    redis: Redis = None,
    redis_password_file: RedisPasswordFile = None,
    shm_directory: ShmDirectory = DEFAULT_SHM_DIRECTORY,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Start nothing: try a step of all ranks of holdfast_trainer in this process."),
    ] = False,
    json: Json = False,
) -> None:
    """Train on this machine, watched: bring up what is missing, show the run, leave nothing behind.

    Exits 0 only if the run has finished, or has stopped after SIGTERM with a last checkpoint. What holdfast_trainer
    would refuse is refused before anything starts. Example:

    holdfast run --ranks 8 -- python -m holdfast_trainer --config demo.toml
    """
    from holdfast_cli.dry_run import tell_dry_run
    from holdfast_cli.errors import ConfigurationError
    from holdfast_cli.local_run_options import LocalRunOptions
    from holdfast_cli.trainer_command import checked_configuration

    options = LocalRunOptions(
        run=name or time.strftime("run-%Y%m%d-%H%M%S"),
        command=tuple(command),
        ranks=ranks,
        directory=directory,
        checkpoint_directory=checkpoints,
        checkpoint_staging=checkpoint_staging,
        checkpoints_secondary=checkpoints_secondary,
        checkpoints_secondary_kept=checkpoints_secondary_keep,
        checkpoint_every=checkpoint_every,
        checkpoint_every_minutes=checkpoint_every_minutes,
        checkpoint_full_every=checkpoint_full_every,
        snapshot_every=snapshot_every,
        checkpoints_kept=keep,
        preemption_grace_s=preemption_grace_s,
        mode=MODES[mode],
        preset=PRESETS[preset],
        faults_allowed=allow_faults,
        redis_url=redis,
        redis_password_file=redis_password_file,
        shm_directory=shm_directory,
    )
    settings = checked_configuration(command, ranks=ranks)
    if not dry_run:
        _watch(options, json=json)
    elif settings is None:
        raise ConfigurationError("--dry-run needs a command with -m holdfast_trainer, and its packages here")
    else:
        tell_dry_run(settings, json=json)


def _watch(options: "LocalRunOptions", *, json: bool) -> None:
    from rich.console import Console

    from holdfast_cli.display import LineDisplay, display_for
    from holdfast_cli.errors import CommandError
    from holdfast_cli.interruption import Interruption
    from holdfast_cli.local_run import LocalRun
    from holdfast_cli.output import print_json, to_json
    from holdfast_cli.summary import closing_line, failure_line, stopped_line
    from holdfast_cli.view import Surroundings
    from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED

    with Interruption() as interruption, LocalRun(options, interruption) as local:
        with LineDisplay(Console(stderr=True)) if json else display_for(Console()) as display:
            status = local.wait(lambda seen: display.update(seen, Surroundings(notes=local.notes())))
        if json:
            print_json(to_json(status))
    if status.phase != RUN_PHASE_FINISHED:
        raise CommandError(failure_line(status, local.paths.logs))
    if status.HasField("left_step"):
        line = stopped_line(status, local.checkpoints)
    else:
        line = closing_line(status, local.checkpoints)
    if not json:
        print(line)
