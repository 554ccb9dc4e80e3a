"""Flags of the command that judges another framework's checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast_cli.flags.common import LOCAL, METRICS, OUTPUT, Json, MetricsAddress, MetricsConfig, argument, option

_READING = "Reading"


@dataclass(frozen=True, kw_only=True)
class GuardFlags:
    """Judge the checkpoints that a training framework writes into a folder, and name the newest good one.

    DIR holds checkpoints of torch.distributed.checkpoint, the Trainer of Hugging Face, Lightning or Megatron. The guard
    prints a line for each as soon as it is complete, until Ctrl-C. It reads a part of each tensor, slowly, and changes
    nothing. With --once it exits with 1 if the newest complete checkpoint is bad, and with 66 if none can be read.

    \b
    Examples:
      holdfast guard checkpoints
      holdfast guard checkpoints --once --full
    """

    folder: Annotated[Path, argument("DIR")]
    """Folder with checkpoints."""
    once: Annotated[bool, option("--once", OUTPUT)] = False
    """Judge what is there, and exit."""
    json: Json = False
    full: Annotated[bool, option("--full", _READING)] = False
    """Read every byte, and check all checksums."""
    sample_mb: Annotated[int, option("--sample-mb MB", _READING, least=1)] = 256
    """Megabytes of tensors to read of each checkpoint."""
    bytes_per_s: Annotated[float, option("--bytes-per-s BYTES", _READING, least=0)] = 100_000_000
    """Most bytes to read in a second. 0: no limit."""
    quiet_s: Annotated[float, option("--quiet-s SECONDS", _READING, least=0)] = 10.0
    """Seconds without a change after which a checkpoint may be complete."""
    incomplete_after_s: Annotated[float, option("--incomplete-after-s SECONDS", _READING, least=0)] = 600.0
    """Seconds without a change after which an unfinished checkpoint is reported."""
    metrics_port: Annotated[
        int | None, option("--metrics-port PORT", METRICS, unset="no metrics", least=0, most=65535)
    ] = None
    """Port on which /metrics is served. 0: any free one."""
    metrics_address: MetricsAddress = LOCAL
    metrics_config: MetricsConfig = None
    endpoint: Annotated[Path | None, option("--endpoint FILE", METRICS)] = None
    """File that gets the process id and the port of /metrics, as JSON."""
