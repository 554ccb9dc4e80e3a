"""``holdfast demo``: kills a rank, hangs another, and compares with an undisturbed run."""

import typer
from rich.console import Console

from holdfast_cli.demo.demo import Demo, DemoOptions
from holdfast_cli.flags import runs
from holdfast_cli.interruption import Interruption
from holdfast_cli.views.output import print_json
from holdfast_proto.exit_codes import ExitCode


def demo(flags: runs.DemoFlags) -> None:
    """Carry both runs out and print the report. Exits with 1 if a goal was missed."""
    console = Console(stderr=flags.json)
    options = DemoOptions(steps=flags.steps, seed=flags.seed, keep=flags.keep, report=flags.report)
    with Interruption() as interruption:
        report = Demo(options, console, interruption).carry_out()
    console.print(report.render())
    if flags.json:
        print_json(report.to_json())
    raise typer.Exit(ExitCode.SUCCESS if report.succeeded else ExitCode.FAILED)
