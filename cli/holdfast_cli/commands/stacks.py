"""``holdfast stacks``: prints where the threads of live ranks are."""

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.live import StacksFlags
from holdfast_cli.live.rank_stacks import save, unpacked
from holdfast_cli.live.stack_groups import stack_lines
from holdfast_cli.run_folder.target import find_target
from holdfast_cli.views.output import print_json


def stacks(flags: StacksFlags) -> None:
    """Print the stacks of some ranks or of all, and save them if asked to. Fails if no rank shows any."""
    client = find_target(flags.directory, flags.run, flags.control).connect()
    found = unpacked(client.take_stacks(flags.rank or [], native=flags.native))
    saved = ""
    if flags.output is not None:
        try:
            saved = f"{flags.output}: stacks of {save(found, flags.output)} ranks"
        except OSError as error:
            raise CommandError(f"--output {flags.output}: {error}: name a folder that you can write to") from None
    if flags.json:
        print_json([one.to_json() for one in found])
    else:
        print("\n".join(line for line in stack_lines(found)).strip("\n"))
        if saved:
            print(f"\n{saved}")
    if not any(one.threads for one in found):
        problem = next((one.problem for one in found if one.problem), "no rank answered")
        raise CommandError(f"no stack could be taken: {problem}")
