"""``holdfast run``: a whole run on this machine."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast_checkpoint.codec.registry import Compression
from holdfast_cli.commands.options import (
    DEFAULT_DIRECTORY,
    DEFAULT_PREEMPTION_GRACE_S,
    DEFAULT_SHM_DIRECTORY,
    CheckpointCompression,
    CheckpointFullEvery,
    Checkpoints,
    CheckpointStaging,
    Directory,
    Json,
    PreemptionGrace,
    RankCommand,
    Redis,
    ShmDirectory,
)
from holdfast_cli.commands.training_options import TrainingOptions, takes_training_options

if TYPE_CHECKING:
    from holdfast_cli.local_run.options import LocalRunOptions


@takes_training_options
def run(
    command: RankCommand,
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--run",
            help="Name of the run; one used before goes on from its newest checkpoint. Default: that of --checkpoints.",
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Training processes.", min=1)] = 1,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
    checkpoint_full_every: CheckpointFullEvery = 8,
    checkpoint_compression: CheckpointCompression = Compression.AUTO,
    checkpoint_staging: CheckpointStaging = None,
    training: TrainingOptions,
    preemption_grace_s: PreemptionGrace = DEFAULT_PREEMPTION_GRACE_S,
    redis: Redis = None,
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
    from holdfast_cli.trainer_command import checked_configuration

    options = training.with_others(
        run=_name(name, checkpoints, training),
        command=tuple(command),
        ranks=ranks,
        directory=directory,
        checkpoint_directory=checkpoints,
        checkpoint_staging=checkpoint_staging,
        checkpoint_full_every=checkpoint_full_every,
        checkpoint_compression=checkpoint_compression,
        preemption_grace_s=preemption_grace_s,
        redis_url=redis,
        shm_directory=shm_directory,
    )
    settings = checked_configuration(command, ranks=ranks)
    if not dry_run:
        _watch(options, json=json)
    elif settings is None:
        raise ConfigurationError("--dry-run needs a command with -m holdfast_trainer, and its packages here")
    else:
        tell_dry_run(settings, json=json)


def _name(given: str | None, checkpoints: str | None, training: TrainingOptions) -> str:
    """Return the run's name: as given, as that of its checkpoints, or a new one. Raises CommandError."""
    from holdfast_cli.checkpoints.location import check_owner, owner_of

    if checkpoints is not None and given is None:
        given = owner_of(checkpoints)
    elif checkpoints is not None and given is not None and not (training.adopt or training.from_scratch):
        check_owner(checkpoints, given)
    return given or time.strftime("run-%Y%m%d-%H%M%S")


def _watch(options: "LocalRunOptions", *, json: bool) -> None:
    from rich.console import Console

    from holdfast_cli.interruption import Interruption
    from holdfast_cli.local_run.local_run import LocalRun
    from holdfast_cli.views.display import LineDisplay, display_for
    from holdfast_cli.views.output import print_json, to_json
    from holdfast_cli.views.run_view import Surroundings
    from holdfast_cli.views.summary import closing_line, ended_badly, stopped_line
    from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED

    with Interruption() as interruption, LocalRun(options, interruption) as local:
        with LineDisplay(Console(stderr=True)) if json else display_for(Console()) as display:
            status = local.wait(lambda seen: display.update(seen, Surroundings(notes=local.notes())))
        if json:
            print_json(to_json(status))
    if status.phase != RUN_PHASE_FINISHED:
        raise ended_badly(status, local.paths.logs)
    if status.HasField("left_step"):
        line = stopped_line(status, local.checkpoints)
    else:
        line = closing_line(status, local.checkpoints)
    if not json:
        print(line)
