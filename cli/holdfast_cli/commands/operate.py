"""``holdfast status`` and ``stop``: requests of operators to a daemon."""

import time
from pathlib import Path

from rich.console import Console

from holdfast_cli.control import has_ended
from holdfast_cli.flags.watching import StatusFlags, StopFlags
from holdfast_cli.run_folder.ended import load_last_status
from holdfast_cli.run_folder.ending import end_run
from holdfast_cli.run_folder.target import find_target
from holdfast_cli.views.clean_text import cleaned
from holdfast_cli.views.display import display_for
from holdfast_cli.views.output import print_json
from holdfast_cli.views.run_view import Surroundings, render
from holdfast_proto.message_json import to_json

_LOOK_S = 0.2


def status(flags: StatusFlags) -> None:
    """Print the status of a run, once or until it ends."""
    target = find_target(flags.directory, flags.run, flags.control)
    last = load_last_status(Path(target.ended.directory)) if target.ended else None
    client = None if last is not None else target.connect()
    seen = last if client is None else client.status()
    surroundings = Surroundings(title=f"ended: {target.ended.outcome}" if target.ended else "")
    assert seen is not None
    if flags.json:
        print_json(to_json(seen))
    elif client is None or not flags.watch:
        Console().print(render(cleaned(seen), surroundings))
    else:
        with display_for(Console()) as display:
            display.update(seen, surroundings)
            while not has_ended(seen):
                time.sleep(_LOOK_S)
                seen = client.status()
                display.update(seen, surroundings)


def stop(flags: StopFlags) -> None:
    """End a run. Without a record of it on this machine, only ask its daemon to."""
    target = find_target(flags.directory, flags.run, flags.control)
    if target.record is not None:
        print(f"{target.run}: {end_run(target.record, flags.timeout_s)}")
        return
    target.connect().stop_run()
    print("the daemon will end the run")
