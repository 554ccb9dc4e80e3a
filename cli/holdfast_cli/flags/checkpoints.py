"""Flags of `holdfast checkpoint`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import DEFAULT_DIRECTORY, RUN, Control, Directory, Json, RunName

_CHECKPOINT, _LLAMA = "Checkpoint", "Hugging Face folder"
_Step = Annotated[
    int | None,
    typer.Argument(metavar="STEP", help="Step of the checkpoint.", show_default="the newest", min=0),
]
_Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        help="Folder or URL of the checkpoints.",
        show_default="that of the run",
        metavar="LOCATION",
        rich_help_panel=RUN,
    ),
]


class WeightType(StrEnum):
    """Types of exported weights, as torch names them."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True, kw_only=True)
class TakeCheckpointFlags:
    """Take a checkpoint now, and return once it is committed."""

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", help="Seconds to wait for the commit.", metavar="SECONDS", rich_help_panel=RUN),
    ] = 600.0
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class CheckpointPlaceFlags:
    """Flags that name the place of checkpoints."""

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    checkpoints: _Checkpoints = None


@dataclass(frozen=True, kw_only=True)
class ListCheckpointsFlags(CheckpointPlaceFlags):
    """List checkpoints: size, compression, layout, and which depends on which."""

    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ShowCheckpointFlags(CheckpointPlaceFlags):
    """Show the tensors of one checkpoint: type, whole shape, shards, codec and stored size."""

    step: _Step = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ReleaseCheckpointFlags(CheckpointPlaceFlags):
    """Unpin a checkpoint, for example one that a loss spike has pinned.

    A later checkpoint deletes it when it is old enough.
    """

    step: Annotated[int, typer.Argument(metavar="STEP", help="Step of the checkpoint.", min=0)]


@dataclass(frozen=True, kw_only=True)
class VerifyCheckpointFlags(CheckpointPlaceFlags):
    """Read every byte of a checkpoint and compare all digests. Exit with 1 if one is wrong.

    The result stays next to the checkpoint: list and the console show it.
    """

    step: _Step = None
    everything: Annotated[bool, typer.Option("--all", help="Verify every checkpoint.", rich_help_panel=_CHECKPOINT)] = (
        False
    )
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class DrillCheckpointFlags(CheckpointPlaceFlags):
    """Load a checkpoint into new processes, in another layout, and compare every tensor.

    Exits with 1 if anything differs. The processes take as much memory as the checkpoint has raw bytes.
    """

    step: _Step = None
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Number of processes.",
            show_default="the number that saved it, at most the number of cores",
            metavar="N",
            min=1,
            rich_help_panel=_CHECKPOINT,
        ),
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ExportCheckpointFlags(CheckpointPlaceFlags):
    """Write the model's weights, whole and not in shards, for other programs: to one file, or to a folder.

    With --llama, the folder is one that Hugging Face's transformers loads. The run must be one of holdfast_trainer.
    """

    step: _Step = None
    to: Annotated[
        Path,
        typer.Option(
            help="File to write: .safetensors, or .pt for torch.load. With --llama: a new folder.",
            metavar="PATH",
            rich_help_panel=_CHECKPOINT,
        ),
    ]
    everything: Annotated[
        bool,
        typer.Option("--all", help="Write the whole state, not only that of `model`.", rich_help_panel=_CHECKPOINT),
    ] = False
    llama: Annotated[
        Path | None,
        typer.Option(
            help="Write a folder with a Llama model. FILE: the configuration of holdfast_trainer in that run.",
            metavar="FILE",
            rich_help_panel=_LLAMA,
        ),
    ] = None
    dtype: Annotated[
        WeightType | None,
        typer.Option(
            help="Type of the weights in the folder.", show_default="that of the checkpoint", rich_help_panel=_LLAMA
        ),
    ] = None
    file_gb: Annotated[
        float,
        typer.Option(
            "--file-size", help="Largest size of a file in the folder, in GB.", metavar="GB", rich_help_panel=_LLAMA
        ),
    ] = 5.0
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ImportCheckpointFlags:
    """Make a checkpoint out of an exported file. A run of any layout can start from it."""

    source: Annotated[Path, typer.Argument(metavar="FILE", help="File to read: .safetensors or .pt.")]
    into: Annotated[
        str,
        typer.Option(
            help="Folder or URL to write to: --checkpoints of the run.",
            metavar="LOCATION",
            rich_help_panel=_CHECKPOINT,
        ),
    ]
    step: Annotated[
        int,
        typer.Option(help="Step after which the run continues.", metavar="STEP", min=0, rich_help_panel=_CHECKPOINT),
    ]
    run: Annotated[
        str,
        typer.Option("--run", help="Name of the run that will start from it.", metavar="NAME", rich_help_panel=RUN),
    ]
    json: Json = False
