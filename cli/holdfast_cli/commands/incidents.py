"""``holdfast incidents``: what went wrong, one incident's whole story, and that story in one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast_cli.commands.options import DEFAULT_DIRECTORY, Control, Directory, Json, RunName
from holdfast_cli.errors import CommandError

if TYPE_CHECKING:
    from holdfast_cli.run_folder.target import Target
    from holdfast_proto.v1.store_pb2 import Incident

app = typer.Typer(
    help="List what went wrong, tell one incident's whole story, pack it into a file.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Identity = Annotated[str, typer.Argument(metavar="ID", help="The incident, e.g. 0001-hung-collective, or just 0001.")]


@app.callback(invoke_without_command=True)
def incidents(
    context: typer.Context,
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    control: Control = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those of earlier starts of the run.")] = False,
    json: Json = False,
) -> None:
    """List what went wrong, oldest first."""
    if context.invoked_subcommand is not None:
        if (run, directory, control, everything, json) != (None, DEFAULT_DIRECTORY, None, False, False):
            raise CommandError(f"put the options behind `{context.invoked_subcommand}`")
        return
    from rich.console import Console

    from holdfast_cli.incidents.view import incident_table
    from holdfast_cli.run_folder.target import find_target
    from holdfast_cli.views.output import print_json, to_json

    target = find_target(directory, run, control)
    found = _all(target)
    earlier = _earlier(target, found)
    if everything:
        if target.record is None:
            raise CommandError("--all reads the folder of a run that `holdfast run` started: leave out --control")
        found = [*earlier, *found]
    if json:
        print_json([to_json(incident) for incident in found])
        return
    Console().print(incident_table(found))
    if earlier and not everything:
        print(f"earlier starts of the run left {len(earlier)} more: add --all")


@app.command()
def show(
    identity: _Identity,
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    control: Control = None,
    json: Json = False,
) -> None:
    """Tell one incident's whole story: verdict, who waits for whom, stacks, black boxes, what was done."""
    from rich.console import Console

    from holdfast_cli.incidents.files import read_files
    from holdfast_cli.incidents.view import incident_story
    from holdfast_cli.views.output import print_json, to_json

    incident, folder = _find(identity, directory, run, control)
    files = read_files(folder)
    if json:
        stacks = [to_json(stack) for stack in files.stacks]
        print_json({**to_json(incident), "stacks": stacks, "folder": str(folder), "files": files.names})
    else:
        Console().print(incident_story(incident, files))


@app.command()
def export(
    identity: _Identity,
    *,
    to: Annotated[Path | None, typer.Option(help="File to write. Default: RUN-ID.tar.gz here.")] = None,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    control: Control = None,
) -> None:
    """Pack one incident's story and all its evidence that is on this machine, for others to read or to replay."""
    from holdfast_cli.incidents.exporting import export_incident

    incident, folder = _find(identity, directory, run, control)
    target = to or Path(f"{incident.run}-{incident.id}.tar.gz")
    try:
        count = export_incident(incident, folder, target)
    except OSError as error:
        raise CommandError(f"--to {target}: {error}: name a file that you can write") from None
    print(f"{target}: {count} files")


def _all(target: "Target") -> "list[Incident]":
    from holdfast_cli.run_folder.ended import load_incidents

    return load_incidents(target.ended) if target.ended else target.connect().incidents()


def _earlier(target: "Target", present: "list[Incident]") -> "list[Incident]":
    """Return what earlier starts of the run have left; nothing where this machine has no folder of it."""
    from holdfast_cli.run_folder.ended import load_earlier_incidents

    return load_earlier_incidents(Path(target.record.directory), target.run, present) if target.record else []


def _find(identity: str, directory: Path, run: str | None, control: Path | None) -> "tuple[Incident, Path]":
    """Return an incident and its folder, which need not exist."""
    from holdfast_cli.run_folder.paths import incident_directory
    from holdfast_cli.run_folder.target import find_target

    target = find_target(directory, run, control)
    present = _all(target)
    for incidents in (present, _earlier(target, present)):
        found = [each for each in incidents if each.id == identity or each.id.startswith(f"{identity}-")]
        exact = [each for each in found if each.id == identity]
        if len(exact or found) == 1:
            break
    else:
        raise CommandError(f"run {target.run} has no incident {identity}: `holdfast incidents --all` lists them")
    found = exact or found
    run_directory = Path(target.record.directory) if target.record else directory / target.run
    return found[0], incident_directory(run_directory, found[0].run or target.run, found[0].id)
