"""``holdfast checkpoint drill``, ``export`` and ``import``: they load a whole state, and need torch."""

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.store.locations import is_url
from holdfast_cli.checkpoints.drill import drill
from holdfast_cli.checkpoints.exporting import Exported, export_checkpoint
from holdfast_cli.checkpoints.importing import import_checkpoint, import_into_store
from holdfast_cli.checkpoints.location import open_remote
from holdfast_cli.checkpoints.tables import bytes_text
from holdfast_cli.commands.checkpoint import folder_of, readable
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.flags.checkpoints import DrillCheckpointFlags, ExportCheckpointFlags, ImportCheckpointFlags
from holdfast_cli.views.output import print_json
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.limits import LARGEST_COUNT


def drill_checkpoint(flags: DrillCheckpointFlags) -> None:
    """Load a checkpoint into new processes. Exits with 1 if a tensor differs."""
    with folder_of(flags) as folder, readable():
        chosen = folder.choose(flags.step)
        assert chosen.manifest is not None
        folder.fetch(chosen)
        ranks = flags.ranks or min(chosen.manifest.world_size, len(os.sched_getaffinity(0)))
        done = drill(chosen.directory, ranks)
    gigabytes_per_s = done.loaded_bytes / done.load_s / 1e9
    if flags.json:
        print_json({"step": chosen.step, "gigabytes_per_s": gigabytes_per_s, **vars(done)})
    else:
        for line in done.differences:
            print(f"step {chosen.step}: {line}")
        outcome = f"{len(done.differences)} parts differ" if done.differences else "every tensor is as it was saved"
        speed = f"{done.load_s:.2f} s, {gigabytes_per_s:.2f} GB/s"
        print(f"step {chosen.step}: loaded by {done.ranks} processes in {speed}: {outcome}")
    if done.differences:
        raise typer.Exit(ExitCode.FAILED)


def export_step(flags: ExportCheckpointFlags) -> None:
    """Write the weights of a checkpoint to one file, or to a folder of a Llama model."""
    export = _export_to(flags)
    with folder_of(flags) as folder, readable():
        chosen = folder.choose(flags.step)
        folder.fetch(chosen)
        exported = export(chosen.directory)
    if flags.json:
        print_json({"step": chosen.step, "file": str(flags.to), **vars(exported)})
    else:
        size = bytes_text(exported.nbytes)
        print(f"step {chosen.step}: {exported.tensors} tensors, {size}, in {flags.to}")


def _export_to(flags: ExportCheckpointFlags) -> Callable[[Path], Exported]:
    """Return what exports the checkpoint in a directory as ``flags`` say. Raises SettingsError."""
    if flags.llama is None:
        if flags.dtype is not None:
            raise SettingsError(f"--dtype {flags.dtype}: needs --llama: add it or leave --dtype out")
        return partial(export_checkpoint, target=flags.to, everything=flags.everything)
    if flags.everything:
        raise SettingsError("--all and --llama exclude each other: leave one out")
    if not 0 < flags.file_gb < math.inf:
        raise SettingsError(f"--file-size {flags.file_gb:g}: give a number above 0 (GB)")
    try:
        from holdfast_cli.checkpoints.llama_folder import export_llama, read_trainer_file
    except ModuleNotFoundError as error:
        raise SettingsError(f"--llama needs {error.name}: install the extra trainer of holdfast-torch") from None
    return partial(
        export_llama,
        target=flags.to,
        settings=read_trainer_file(flags.llama),
        dtype=flags.dtype,
        file_bytes=int(flags.file_gb * 1e9),
    )


def import_file(flags: ImportCheckpointFlags) -> None:
    """Commit the state in a file as a checkpoint."""
    if flags.step > LARGEST_COUNT:
        raise SettingsError(f"--step {flags.step}: no run counts that far: use at most {LARGEST_COUNT}")
    try:
        if is_url(flags.into):
            place = open_remote("--into", flags.into)
            manifest = import_into_store(flags.source, place, step=flags.step, run=flags.run)
        else:
            manifest = import_checkpoint(flags.source, Path(flags.into), step=flags.step, run=flags.run)
    except CheckpointError as error:
        raise CommandError(str(error)) from None
    if flags.json:
        print_json({"step": flags.step, "raw_bytes": manifest.raw_bytes, "stored_bytes": manifest.stored_bytes})
    else:
        size = bytes_text(manifest.raw_bytes)
        print(f"step {flags.step} of run {flags.run}: {size} committed in {flags.into}")
