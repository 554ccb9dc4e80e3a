"""What to run on this machine, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_checkpoint.codec.registry import Compression
from holdfast_cli.checkpoints.location import primary_location, secondary_location
from holdfast_cli.errors import ConfigurationError
from holdfast_cli.local_run.store import check_url
from holdfast_proto import keys
from holdfast_proto.v1.store_pb2 import MODE_ACT, PRESET_DEFAULT, Mode, Preset


@dataclass(frozen=True, kw_only=True)
class LocalRunOptions:
    """What to run on this machine, and how."""

    run: str
    command: tuple[str, ...]
    """argv of one rank; none, and no ranks: somebody else launches them."""
    ranks: int = 1
    directory: Path = Path("holdfast-runs")
    """Holds one folder per run."""
    checkpoint_directory: Path | str | None = None
    """Folder or URL. None: ``checkpoints`` in the run's folder."""
    checkpoint_staging: Path | None = None
    """For shards on their way to and from a URL. None: in the run's folder."""
    checkpoints_secondary: str | None = None
    """Folder or URL that gets a copy of every checkpoint."""
    checkpoints_secondary_kept: int | None = None
    """None: as many as in the first place."""
    checkpoint_upload_mb_per_s: float = 0.0
    """Of all uploads of a node together; 0: no limit."""
    checkpoint_every: int = 100
    """Steps; 0: on command and at the end only."""
    checkpoint_every_minutes: float = 0.0
    """Besides those by steps; 0: none by time."""
    checkpoint_full_every: int = 8
    """Every so many checkpoints one that can be read alone; those between are stored as differences to it."""
    checkpoint_compression: Compression = Compression.AUTO
    snapshot_every: int = 10
    """Steps; 0: never."""
    checkpoints_kept: int = 3
    from_scratch: bool = False
    """Begin a new history of checkpoints from the seed."""
    adopt: bool = False
    """Go on from the checkpoints of a run of another name."""
    restarts_without_progress: int = 3
    preemption_grace_s: float = 30.0
    """From SIGTERM to the end, for a last checkpoint; 0: end at once."""
    mode: Mode = MODE_ACT
    preset: Preset = PRESET_DEFAULT
    restart_patience: float = 1.0
    """Factor on how long a standstill without a certain sign of a fault lasts before a restart."""
    faults_allowed: bool = False
    """Whether `holdfast inject` may harm its ranks."""
    redis_url: str | None = None
    """None: a server of the run's own."""
    redis_password_file: Path | None = None
    shm_directory: Path = Path("/dev/shm")
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to that of the components and ranks."""

    def __post_init__(self) -> None:
        """Raise ConfigurationError for settings that do not make sense."""
        try:
            keys.check_run_name(self.run)
        except ValueError as error:
            raise ConfigurationError(f"--run: {error}") from None
        if not self.command and self.ranks:
            raise ConfigurationError("nothing to run: give the trainer's command after --")
        if self.ranks < 1 and self.command:
            raise ConfigurationError(f"--ranks {self.ranks}: at least one is needed")
        if self.checkpoint_every and (not self.snapshot_every or self.checkpoint_every % self.snapshot_every):
            raise ConfigurationError(
                f"--checkpoint-every {self.checkpoint_every}: use a multiple of --snapshot-every "
                f"{self.snapshot_every}, for a checkpoint is written from a snapshot"
            )
        for flag, value in (
            ("--preemption-grace-s", self.preemption_grace_s),
            ("--checkpoint-every-minutes", self.checkpoint_every_minutes),
            ("--checkpoint-upload-mb-per-s", self.checkpoint_upload_mb_per_s),
        ):
            if value < 0:
                raise ConfigurationError(f"{flag} {value:g}: use 0 or more")
        if self.from_scratch and self.adopt:
            raise ConfigurationError(
                "--from-scratch and --adopt exclude each other: the one begins from the seed, the other goes on"
            )
        if self.checkpoint_full_every < 1:
            raise ConfigurationError(
                f"--checkpoint-full-every {self.checkpoint_full_every}: use 1 (all can be read alone) or more"
            )
        primary_location(str(self.checkpoint_directory or ""))
        secondary_location(self.checkpoints_secondary)
        if self.redis_url is not None:
            check_url(self.redis_url)
