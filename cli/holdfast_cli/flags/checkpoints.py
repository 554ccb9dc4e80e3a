"""Flags of `holdfast checkpoint`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from holdfast_cli.flags.common import (
    DEFAULT_DIRECTORY,
    RUN,
    Directory,
    Json,
    OneRunFlags,
    RunName,
    argument,
    option,
)

_CHECKPOINT, _LLAMA = "Checkpoint", "Hugging Face folder"
_Step = Annotated[int | None, argument("STEP", about="Step of the checkpoint.", unset="the newest", least=0)]
_Checkpoints = Annotated[
    str | None,
    option("--checkpoints LOCATION", RUN, about="Folder or URL of the checkpoints.", unset="that of the run"),
]


class WeightType(StrEnum):
    """Types of exported weights, as torch names them."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True, kw_only=True)
class TakeCheckpointFlags(OneRunFlags):
    """Take a checkpoint now, and return once it is committed."""

    timeout_s: Annotated[float, option("--timeout SECONDS", RUN)] = 600.0
    """Seconds to wait for the commit."""
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

    step: Annotated[int, argument("STEP", least=0)]
    """Step of the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class VerifyCheckpointFlags(CheckpointPlaceFlags):
    """Read every byte of a checkpoint and compare all digests. Exit with 1 if one is wrong.

    The result stays next to the checkpoint: list and the console show it.
    """

    step: _Step = None
    everything: Annotated[bool, option("--all", _CHECKPOINT)] = False
    """Verify every checkpoint."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class DrillCheckpointFlags(CheckpointPlaceFlags):
    """Load a checkpoint into new processes, in another layout, and compare every tensor.

    Exits with 1 if anything differs. The processes take as much memory as the checkpoint has raw bytes.
    """

    step: _Step = None
    ranks: Annotated[
        int | None,
        option("--ranks N", _CHECKPOINT, unset="the number that saved it, at most the number of cores", least=1),
    ] = None
    """Number of processes."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ExportCheckpointFlags(CheckpointPlaceFlags):
    """Write the model's weights, whole and not in shards, for other programs: to one file, or to a folder.

    With --llama, the folder is one that Hugging Face's transformers loads. The run must be one of holdfast_trainer.
    """

    step: _Step = None
    to: Annotated[Path, option("--to PATH", _CHECKPOINT)]
    """File to write: .safetensors, or .pt for torch.load. With --llama: a new folder."""
    everything: Annotated[bool, option("--all", _CHECKPOINT)] = False
    """Write the whole state, not only that of `model`."""
    llama: Annotated[Path | None, option("--llama FILE", _LLAMA)] = None
    """Write a folder with a Llama model. FILE: the configuration of holdfast_trainer in that run."""
    dtype: Annotated[WeightType | None, option("--dtype", _LLAMA, unset="that of the checkpoint")] = None
    """Type of the weights in the folder."""
    file_gb: Annotated[float, option("--file-size GB", _LLAMA)] = 5.0
    """Largest size of a file in the folder, in GB."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ImportCheckpointFlags:
    """Make a checkpoint out of an exported file. A run of any layout can start from it."""

    source: Annotated[Path, argument("FILE")]
    """File to read: .safetensors or .pt."""
    into: Annotated[str, option("--into LOCATION", _CHECKPOINT)]
    """Folder or URL to write to: --checkpoints of the run."""
    step: Annotated[int, option("--step STEP", _CHECKPOINT, least=0)]
    """Step after which the run continues."""
    run: Annotated[str, option("--run NAME", RUN)]
    """Name of the run that will start from it."""
    json: Json = False
