"""``holdfast checkpoint``: takes, lists, shows, releases and verifies checkpoints."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import load_committed_indexes
from holdfast_cli.checkpoints.checkpoint_folder import CheckpointFolder, open_folder
from holdfast_cli.checkpoints.tables import (
    checkpoint_as_json,
    checkpoint_table,
    summarize,
    tensor_as_json,
    tensor_table,
)
from holdfast_cli.checkpoints.verify import verify_checkpoint
from holdfast_cli.control import ControlClient, ControlError, has_ended
from holdfast_cli.errors import CheckpointsUnavailableError, CommandError
from holdfast_cli.flags.checkpoints import (
    CheckpointPlaceFlags,
    ListCheckpointsFlags,
    ReleaseCheckpointFlags,
    ShowCheckpointFlags,
    TakeCheckpointFlags,
    VerifyCheckpointFlags,
)
from holdfast_cli.run_folder.record import find_record
from holdfast_cli.run_folder.target import find_target
from holdfast_cli.views.output import print_json
from holdfast_hooks import ConfigurationError
from holdfast_proto.exit_codes import ExitCode

_LOOK_S = 0.2


def now(flags: TakeCheckpointFlags) -> None:
    """Request a checkpoint and wait until it is committed."""
    client = find_target(flags.directory, flags.run, flags.control).connect()
    step = client.take_checkpoint()
    _wait_committed(client, step, flags.timeout_s)
    if flags.json:
        print_json({"step": step, "committed": True})
    else:
        print(f"checkpoint of step {step} committed")


def list_checkpoints(flags: ListCheckpointsFlags) -> None:
    """Print one row per checkpoint."""
    with folder_of(flags) as folder:
        found = folder.find()
        if flags.json:
            print_json([checkpoint_as_json(checkpoint, found) for checkpoint in found])
        else:
            Console().print(checkpoint_table(found, found))


def show(flags: ShowCheckpointFlags) -> None:
    """Print the tensors of one checkpoint."""
    with folder_of(flags) as folder:
        chosen = folder.choose(flags.step)
        with readable():
            folder.fetch_indexes(chosen)
            _, indexes = load_committed_indexes(chosen.directory)
        tensors, found = summarize(indexes), folder.find()
        if flags.json:
            print_json({**checkpoint_as_json(chosen, found), "tensors": [tensor_as_json(tensor) for tensor in tensors]})
        else:
            Console().print(checkpoint_table([chosen], found), tensor_table(tensors))


def release(flags: ReleaseCheckpointFlags) -> None:
    """Unpin a checkpoint."""
    with folder_of(flags) as folder:
        chosen = folder.choose(flags.step)
        if not chosen.kept:
            raise CommandError(
                f"the checkpoint of step {flags.step} is not kept: `holdfast checkpoint list` shows those that are"
            )
        try:
            folder.release(chosen)
        except CheckpointError as error:
            raise CommandError(str(error)) from None
    print(chosen.release_line)


def verify(flags: VerifyCheckpointFlags) -> None:
    """Read every byte of one checkpoint, or of all, and note the result there.

    Exits with 1 if a digest is wrong, else with 66 if files are missing or cannot be read now.
    """
    if flags.everything and flags.step is not None:
        raise CommandError(f"--all and step {flags.step} exclude each other: leave one out")
    with folder_of(flags) as folder:
        chosen = folder.find() if flags.everything else [folder.choose(flags.step)]
        found = [(checkpoint, verify_checkpoint(checkpoint, folder)) for checkpoint in chosen]
    if flags.json:
        print_json([{"step": one.step, "history": one.history, "damages": result.damages} for one, result in found])
    else:
        for one, result in found:
            where = f" of history {one.history}" if one.is_left else ""
            for line in result.damages or ["every byte is as it was written"]:
                print(f"step {one.step}{where}: {line}")
    for one, result in found:
        if result.unnoted:
            print(f"step {one.step}: `list` will not show this result: {result.unnoted}", file=sys.stderr)
    if any(result.damages and result.is_whole for _, result in found):
        raise typer.Exit(ExitCode.FAILED)
    if any(result.damages for _, result in found):
        raise typer.Exit(ExitCode.CHECKPOINTS_UNAVAILABLE)


@contextmanager
def folder_of(flags: CheckpointPlaceFlags) -> Iterator[CheckpointFolder]:
    """Open the checkpoints that the flags name, else those of the run."""
    with open_folder(flags.checkpoints or find_record(flags.directory, flags.run).checkpoint_directory) as folder:
        yield folder


@contextmanager
def readable() -> Iterator[None]:
    """Turn the errors of reading a checkpoint into CommandError."""
    try:
        yield
    except ConfigurationError as error:
        raise CommandError(str(error)) from None
    except CheckpointUnreadable as error:
        raise CommandError(
            f"{error}: choose another step, `holdfast checkpoint verify --all` names the good ones"
        ) from None
    except CheckpointUnavailable as error:
        raise CheckpointsUnavailableError(str(error)) from None
    except CheckpointError as error:
        raise CommandError(str(error)) from None


def _wait_committed(client: ControlClient, step: int, timeout_s: float) -> None:
    """Wait until a checkpoint that was requested is committed. Raises CommandError if it is not."""
    taken_by: int | None = None
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
            if taken_by is None:
                # A step that is over is in memory, and is written whatever becomes of the ranks.
                taken_by = seen.generation if step > seen.newest_step else 0
            if taken_by not in (0, seen.generation) and seen.newest_step < step:
                raise CommandError(f"the run has restarted before the checkpoint of step {step}: request it again")
        time.sleep(_LOOK_S)
    raise CommandError(
        f"the checkpoint of step {step} is not committed after {timeout_s:g} s: "
        "`holdfast incidents` may say why; wait longer with --timeout"
    )
