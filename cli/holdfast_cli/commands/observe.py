"""``holdfast observe``: watches a run that another launcher starts."""

import sys
import time

import typer
from rich.console import Console

from holdfast_cli.flags.runs import ObserveFlags
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.launcher_watch import Launcher, LauncherWatch, observed_node
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.notify_spec import check_files
from holdfast_cli.local_run.options import LocalRunOptions, local_run_options
from holdfast_cli.settings.resolving import resolve
from holdfast_cli.settings.schema import ModeName
from holdfast_cli.trainer_command import check_launcher
from holdfast_cli.views.attachment import FIVE_LINES
from holdfast_cli.views.console_address import start_lines
from holdfast_cli.views.display import LineDisplay
from holdfast_cli.views.run_view import Surroundings

NO_RANK = f"no rank has said hello: does the training script call holdfast_hooks.attach()? {FIVE_LINES}"


def observe(flags: ObserveFlags) -> None:
    """Watch until the launcher, or the run, has ended. Exits with the launcher's code."""
    resolved = resolve("observe", flags.given, (), flags.config)
    options = local_run_options(
        resolved,
        run=time.strftime("run-%Y%m%d-%H%M%S") if resolved.settings.run is None else resolved.settings.run,
        ranks=0,
        checkpoint_every=0,
        snapshot_every=0,
        preemption_grace_s=0.0,
        mode=ModeName.OBSERVE,
    )
    check_files(resolved)
    if flags.launcher:
        check_launcher(flags.launcher)
    raise typer.Exit(_observe(options, flags.launcher or []))


def _observe(options: LocalRunOptions, command: list[str]) -> int:
    # On stderr, and never drawn in place: the launcher's own output goes to the same terminal.
    display = LineDisplay(Console(stderr=True))
    with Interruption() as interruption, LocalRun(options, interruption) as local:
        observation = LauncherWatch(
            local,
            interruption,
            show=lambda seen: display.update(seen, Surroundings(notes=local.stack.notes())),
            complain=_complain,
        )
        display.say(start_lines(local.paths.control, sys.stderr))
        node = observed_node(local)
        code = 0
        if command:
            code = observation.until_exit(Launcher(command, node.to_environment()))
        else:
            print(node.shell_line(), flush=True)
            observation.until_end()
        if not observation.has_met_ranks:
            _complain(NO_RANK)
    return code


def _complain(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr, flush=True)
