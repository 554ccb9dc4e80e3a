"""``holdfast demo``: kill a rank, hang another, and compare with an undisturbed run."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.commands.options import Json
from holdfast_proto.exit_codes import ExitCode


def demo(
    *,
    seed: Annotated[int, typer.Option(help="Seed of both runs.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Optimizer steps of each run.")] = 90,
    keep: Annotated[Path | None, typer.Option(help="Keep both runs, logs and checkpoints, in this folder.")] = None,
    json: Json = False,
) -> None:
    """Train twice with eight ranks on this machine: once in peace, once with a rank killed and another hung.

    Shows who was blamed, how soon training went on, and whether the final weights agree bit by bit. Exits 0 only
    if both culprits were named, both times the run came back, and the weights agree.
    """
    from rich.console import Console

    from holdfast_cli.demo.demo import Demo, DemoOptions
    from holdfast_cli.interruption import Interruption
    from holdfast_cli.views.output import print_json

    console = Console(stderr=json)
    options = DemoOptions(steps=steps, seed=seed, keep=keep)
    with Interruption() as interruption:
        report = Demo(options, console, interruption).carry_out()
    console.print(report.render())
    if json:
        print_json(report.to_json())
    raise typer.Exit(ExitCode.SUCCESS if report.succeeded else ExitCode.FAILED)
