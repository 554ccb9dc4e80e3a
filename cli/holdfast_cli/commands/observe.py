"""``holdfast observe``: watch a run that somebody else launches."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast_cli.commands.options import (
    DEFAULT_DIRECTORY,
    PRESETS,
    Directory,
    Preset,
    PresetName,
    Redis,
    RedisPasswordFile,
)

if TYPE_CHECKING:
    from holdfast_cli.local_run.options import LocalRunOptions

NO_RANK = "no rank has said hello: does the training script call holdfast_hooks.attach()?"


def observe(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Launcher: everything after --. Without one, a line for its shell is printed."),
    ] = None,
    *,
    name: Annotated[str | None, typer.Option("--run", help="Name of the run.")] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    preset: Preset = PresetName.DEFAULT,
    redis: Redis = None,
    redis_password_file: RedisPasswordFile = None,
) -> None:
    """Watch a training run on this machine that another launcher starts; never stop, restart or change it.

    Exits as the launcher does. Without a launcher it serves until the ranks have left, or until Ctrl-C. Example:

    holdfast observe -- torchrun --nproc-per-node 4 train.py
    """
    from holdfast_cli.local_run.options import LocalRunOptions
    from holdfast_proto.v1.store_pb2 import MODE_OBSERVE

    options = LocalRunOptions(
        run=name or time.strftime("run-%Y%m%d-%H%M%S"),
        command=(),
        ranks=0,
        directory=directory,
        checkpoint_every=0,
        snapshot_every=0,
        preemption_grace_s=0.0,
        mode=MODE_OBSERVE,
        preset=PRESETS[preset],
        redis_url=redis,
        redis_password_file=redis_password_file,
    )
    raise typer.Exit(_observe(options, command or []))


def _observe(options: "LocalRunOptions", command: list[str]) -> int:
    from rich.console import Console

    from holdfast_cli.interruption import Interruption
    from holdfast_cli.local_run.launcher import Launcher
    from holdfast_cli.local_run.local_run import LocalRun
    from holdfast_cli.local_run.observation import Observation, observed_node
    from holdfast_cli.views.display import LineDisplay
    from holdfast_cli.views.run_view import Surroundings

    # On stderr, and never drawn in place: the launcher's own output goes to the same terminal.
    display = LineDisplay(Console(stderr=True))
    with Interruption() as interruption, LocalRun(options, interruption) as local:
        observation = Observation(
            local,
            interruption,
            show=lambda seen: display.update(seen, Surroundings(notes=local.notes())),
            complain=_tell,
        )
        node = observed_node(local)
        code = 0
        if command:
            code = observation.until_exit(Launcher(command, node.to_environment()))
        else:
            print(node.shell_line(), flush=True)
            observation.until_end()
        if not observation.has_met_ranks:
            _tell(NO_RANK)
    return code


def _tell(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr, flush=True)
