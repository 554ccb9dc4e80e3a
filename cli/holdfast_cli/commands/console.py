"""``holdfast console``: prints the address of the daemon's page in a browser."""

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.watching import ConsoleFlags
from holdfast_cli.run_folder.target import find_target
from holdfast_cli.views.console_address import OPERATOR, VIEWER, console_lines


def console(flags: ConsoleFlags) -> None:
    """Print the address, and how to reach it from another machine."""
    target = find_target(flags.directory, flags.run, flags.control)
    target.connect()  # raises if the run has ended: its daemon has, too
    lines = console_lines(target.control, VIEWER if flags.viewer else OPERATOR)
    if not lines:
        raise CommandError(
            "the daemon serves no console: was it started with --no-console, or without "
            "`pip install 'holdfast-torch[console]'`? Its log says why"
        )
    for line in lines:
        print(line)
