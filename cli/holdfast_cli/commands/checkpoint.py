"""``holdfast checkpoint``: take, list, look into, prove, and carry checkpoints in and out."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast_cli.commands.options import DEFAULT_DIRECTORY, Control, Directory, Json, RunName
from holdfast_cli.errors import CheckpointsUnavailableError, CommandError
from holdfast_proto.exit_codes import ExitCode

if TYPE_CHECKING:
    from holdfast_cli.checkpoints.folder import CheckpointFolder
    from holdfast_cli.control import ControlClient

_LOOK_S = 0.2

Step = Annotated[int | None, typer.Argument(metavar="[STEP]", help="Default: the newest.", min=0)]
Checkpoints = Annotated[
    str | None, typer.Option("--checkpoints", help="Folder or URL of the checkpoints. Default: that of the run.")
]

app = typer.Typer(
    help="Take a checkpoint, or see, prove, export and import those on the disk.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def now(
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    control: Control = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for it to be committed.")] = 600.0,
    json: Json = False,
) -> None:
    """Take a checkpoint now, and return once it is committed."""
    from holdfast_cli.run_folder.target import find_target
    from holdfast_cli.views.output import print_json

    client = find_target(directory, run, control).connect()
    step = client.take_checkpoint()
    _wait_committed(client, step, timeout_s)
    if json:
        print_json({"step": step, "committed": True})
    else:
        print(f"checkpoint of step {step} committed")


@app.command("list")
def list_checkpoints(
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
    json: Json = False,
) -> None:
    """List checkpoints: size, compression, layout, and what depends on what."""
    from rich.console import Console

    from holdfast_cli.checkpoints.view import checkpoint_as_json, checkpoint_table
    from holdfast_cli.views.output import print_json

    with _folder(directory, run, checkpoints) as folder:
        found = folder.find()
        if json:
            print_json([checkpoint_as_json(checkpoint, found) for checkpoint in found])
        else:
            Console().print(checkpoint_table(found, found))


@app.command()
def show(
    step: Step = None,
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
    json: Json = False,
) -> None:
    """Show one checkpoint's tensors: type, whole shape, shards, codec and stored size."""
    from rich.console import Console

    from holdfast_checkpoint.format.manifest import load_committed_indexes
    from holdfast_cli.checkpoints.view import (
        checkpoint_as_json,
        checkpoint_table,
        summarize,
        tensor_as_json,
        tensor_table,
    )
    from holdfast_cli.views.output import print_json

    with _folder(directory, run, checkpoints) as folder:
        chosen = folder.choose(step)
        with _unreadable():
            folder.fetch_indexes(chosen)
            _, indexes = load_committed_indexes(chosen.directory)
        tensors, found = summarize(indexes), folder.find()
        if json:
            print_json({**checkpoint_as_json(chosen, found), "tensors": [tensor_as_json(tensor) for tensor in tensors]})
        else:
            Console().print(checkpoint_table([chosen], found), tensor_table(tensors))


@app.command()
def release(
    step: Annotated[int, typer.Argument(min=0)],
    *,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
) -> None:
    """Let a checkpoint go that is kept, for example since a loss spike; the next ones make it go when it is old."""
    from holdfast_checkpoint.errors import CheckpointError

    with _folder(directory, run, checkpoints) as folder:
        chosen = folder.choose(step)
        if not chosen.kept:
            raise CommandError(
                f"the checkpoint of step {step} is not kept: `holdfast checkpoint list` shows those that are"
            )
        try:
            folder.release(chosen)
        except CheckpointError as error:
            raise CommandError(str(error)) from None
    print(f"step {step} is released; it was kept for: {chosen.kept}")


@app.command()
def verify(
    step: Step = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every checkpoint, not one.")] = False,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
    json: Json = False,
) -> None:
    """Read every byte of a checkpoint and compare all digests; exit code 1 if one is wrong."""
    from holdfast_cli.checkpoints.verify import damages
    from holdfast_cli.views.output import print_json

    if everything and step is not None:
        raise CommandError(f"--all and step {step} exclude each other: leave one out")
    with _folder(directory, run, checkpoints) as folder:
        chosen = folder.find() if everything else [folder.choose(step)]
        found = [(checkpoint, damages(checkpoint, folder)) for checkpoint in chosen]
    if json:
        print_json([{"step": one.step, "history": one.history, "damages": lines} for one, lines in found])
    else:
        for one, lines in found:
            where = f" of history {one.history}" if one.is_left else ""
            for line in lines or ["every byte is as it was written"]:
                print(f"step {one.step}{where}: {line}")
    if any(lines for _, lines in found):
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def drill(
    step: Step = None,
    *,
    ranks: Annotated[
        int | None, typer.Option(help="Processes. Default: as many as saved it, but no more than cores.", min=1)
    ] = None,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
    json: Json = False,
) -> None:
    """Load a checkpoint into new processes, in a layout of their own, and compare all that arrives.

    Exit code 1 if anything differs. The processes take as much memory as the checkpoint has raw bytes.
    """
    from holdfast_cli.checkpoints.drill import drill as run_drill
    from holdfast_cli.views.output import print_json

    with _folder(directory, run, checkpoints) as folder, _torch(), _unreadable():
        chosen = folder.choose(step)
        assert chosen.manifest is not None
        folder.fetch(chosen)
        done = run_drill(chosen.directory, ranks or min(chosen.manifest.world_size, len(os.sched_getaffinity(0))))
    gigabytes_per_s = done.loaded_bytes / done.load_s / 1e9
    if json:
        print_json({"step": chosen.step, "gigabytes_per_s": gigabytes_per_s, **vars(done)})
    else:
        for line in done.differences:
            print(f"step {chosen.step}: {line}")
        outcome = f"{len(done.differences)} parts differ" if done.differences else "every tensor is as it was saved"
        speed = f"{done.load_s:.2f} s, {gigabytes_per_s:.2f} GB/s"
        print(f"step {chosen.step}: loaded by {done.ranks} processes in {speed}: {outcome}")
    if done.differences:
        raise typer.Exit(ExitCode.FAILED)


@app.command("export")
def export_step(
    step: Step = None,
    *,
    to: Annotated[Path, typer.Option(help="File to write: .safetensors, or .pt for torch.load.")],
    everything: Annotated[bool, typer.Option("--all", help="The whole state, not only that of `model`.")] = False,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    checkpoints: Checkpoints = None,
    json: Json = False,
) -> None:
    """Write the model's weights, whole and not in shards, to one file for other programs."""
    from holdfast_cli.checkpoints.view import bytes_text
    from holdfast_cli.views.output import print_json

    with _torch():
        from holdfast_cli.checkpoints.exporting import export_checkpoint
    with _folder(directory, run, checkpoints) as folder, _unreadable():
        chosen = folder.choose(step)
        folder.fetch(chosen)
        exported = export_checkpoint(chosen.directory, to, everything=everything)
    if json:
        print_json({"step": chosen.step, "file": str(to), **vars(exported)})
    else:
        print(f"step {chosen.step}: {exported.tensors} tensors, {bytes_text(exported.nbytes)}, in {to}")


@app.command("import")
def import_file(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A .safetensors or .pt file.")],
    *,
    into: Annotated[str, typer.Option(help="Folder or URL of checkpoints, the --checkpoints of the run to start.")],
    step: Annotated[int, typer.Option(help="Step that the run is to have behind it.", min=0)],
    run: Annotated[str, typer.Option("--run", help="Name of the run that is to start from it.")],
    json: Json = False,
) -> None:
    """Make a checkpoint, from which a run of any layout can start, out of an exported file."""
    from holdfast_checkpoint.errors import CheckpointError
    from holdfast_checkpoint.store.locations import is_url
    from holdfast_cli.checkpoints.location import open_remote
    from holdfast_cli.checkpoints.view import bytes_text
    from holdfast_cli.views.output import print_json

    with _torch():
        from holdfast_cli.checkpoints.importing import import_checkpoint, import_into_store
    try:
        if is_url(into):
            manifest = import_into_store(source, open_remote("--into", into), step=step, run=run)
        else:
            manifest = import_checkpoint(source, Path(into), step=step, run=run)
    except CheckpointError as error:
        raise CommandError(str(error)) from None
    if json:
        print_json({"step": step, "raw_bytes": manifest.raw_bytes, "stored_bytes": manifest.stored_bytes})
    else:
        print(f"step {step} of run {run}: {bytes_text(manifest.raw_bytes)} committed in {into}")


@contextmanager
def _folder(directory: Path, run: str | None, checkpoints: str | None) -> "Iterator[CheckpointFolder]":
    from holdfast_cli.checkpoints.folder import open_folder
    from holdfast_cli.run_folder.record import find_record

    with open_folder(checkpoints or find_record(directory, run).checkpoint_directory) as folder:
        yield folder


@contextmanager
def _unreadable() -> Iterator[None]:
    from holdfast_checkpoint.errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
    from holdfast_hooks import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        raise CommandError(str(error)) from None
    except CheckpointUnreadable as error:
        raise CommandError(f"{error}: choose another step, `holdfast checkpoint verify --all` names the good") from None
    except CheckpointUnavailable as error:
        raise CheckpointsUnavailableError(str(error)) from None
    except CheckpointError as error:
        raise CommandError(str(error)) from None


@contextmanager
def _torch() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandError(f"this needs {error.name}: install the extra trainer of holdfast-torch") from None


def _wait_committed(client: "ControlClient", step: int, timeout_s: float) -> None:
    from holdfast_cli.control import ControlError
    from holdfast_cli.local_run.local_run import has_ended

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            seen = client.status()
        except ControlError as error:
            if not error.unreachable:
                raise
        else:
            if seen.newest_checkpoint >= step:
                return
            if has_ended(seen):
                raise CommandError(f"the run ended before the checkpoint of step {step}: {seen.outcome}")
        time.sleep(_LOOK_S)
    raise CommandError(
        f"the checkpoint of step {step} is not committed after {timeout_s:g} s: "
        "`holdfast incidents` may say why; wait longer with --timeout"
    )
