"""``holdfast status`` and ``stop``: what operators ask of a daemon."""

import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.commands.options import DEFAULT_DIRECTORY, Control, Directory, Json, RunName

_LOOK_S = 0.2


def status(
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    control: Control = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run ends or Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show how a run is: state, step, loss, every rank, the newest incident."""
    from rich.console import Console

    from holdfast_cli.local_run.local_run import has_ended
    from holdfast_cli.run_folder.ended import load_last_status
    from holdfast_cli.run_folder.target import find_target
    from holdfast_cli.views.display import display_for
    from holdfast_cli.views.output import print_json, to_json
    from holdfast_cli.views.run_view import Surroundings, render

    target = find_target(directory, run, control)
    last = load_last_status(Path(target.ended.directory)) if target.ended else None
    client = None if last is not None else target.connect()
    seen = last if client is None else client.status()
    surroundings = Surroundings(title=f"ended: {target.ended.outcome}" if target.ended else "")
    assert seen is not None
    if json:
        print_json(to_json(seen))
    elif client is None or not watch:
        Console().print(render(seen, surroundings))
    else:
        with display_for(Console()) as display:
            display.update(seen, surroundings)
            while not has_ended(seen):
                time.sleep(_LOOK_S)
                seen = client.status()
                display.update(seen, surroundings)


def stop(
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    control: Control = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for its end.")] = 60.0,
) -> None:
    """End a run after a last checkpoint: its ranks, agents and whatever `holdfast run` has started for it."""
    from holdfast_cli.run_folder.ending import end_run
    from holdfast_cli.run_folder.target import find_target

    target = find_target(directory, run, control)
    if target.record is not None:
        print(f"{target.run}: {end_run(target.record, timeout_s)}")
        return
    target.connect().stop_run()
    print("the daemon was told to end the run")
