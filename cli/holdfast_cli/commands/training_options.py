"""What a run does while it trains: `holdfast run` and `holdfast publish` take the same options."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from holdfast_cli.commands.options import (
    MODES,
    PRESETS,
    Adopt,
    AllowFaults,
    CheckpointEvery,
    CheckpointEveryMinutes,
    CheckpointsSecondary,
    CheckpointsSecondaryKeep,
    CheckpointUploadMbPerS,
    FromScratch,
    Keep,
    Mode,
    ModeName,
    Preset,
    PresetName,
    RedisPasswordFile,
    RestartPatience,
    SnapshotEvery,
)

if TYPE_CHECKING:
    from holdfast_cli.local_run.options import LocalRunOptions


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Each field is an option of the same name."""

    checkpoint_every: CheckpointEvery = 100
    checkpoint_every_minutes: CheckpointEveryMinutes = 0.0
    snapshot_every: SnapshotEvery = 10
    keep: Keep = 3
    from_scratch: FromScratch = False
    adopt: Adopt = False
    checkpoints_secondary: CheckpointsSecondary = None
    checkpoints_secondary_keep: CheckpointsSecondaryKeep = None
    checkpoint_upload_mb_per_s: CheckpointUploadMbPerS = 0.0
    preset: Preset = PresetName.DEFAULT
    restart_patience: RestartPatience = 1.0
    mode: Mode = ModeName.ACT
    allow_faults: AllowFaults = False
    redis_password_file: RedisPasswordFile = None

    def with_others(self, **others: Any) -> "LocalRunOptions":
        """Return all options of a run. ``others``: those that only one of the commands takes."""
        from holdfast_cli.local_run.options import LocalRunOptions

        return LocalRunOptions(
            checkpoint_every=self.checkpoint_every,
            checkpoint_every_minutes=self.checkpoint_every_minutes,
            snapshot_every=self.snapshot_every,
            checkpoints_kept=self.keep,
            from_scratch=self.from_scratch,
            adopt=self.adopt,
            checkpoints_secondary=self.checkpoints_secondary,
            checkpoints_secondary_kept=self.checkpoints_secondary_keep,
            checkpoint_upload_mb_per_s=self.checkpoint_upload_mb_per_s,
            preset=PRESETS[self.preset],
            restart_patience=self.restart_patience,
            mode=MODES[self.mode],
            faults_allowed=self.allow_faults,
            redis_password_file=self.redis_password_file,
            **others,
        )


def takes_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let typer see the fields of TrainingOptions where ``command`` has the parameter ``training``."""
    hints = get_type_hints(TrainingOptions, include_extras=True)
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(TrainingOptions)
    ]
    own = inspect.signature(command).parameters.values()
    shown = [one for parameter in own for one in (options if parameter.name == "training" else [parameter])]

    @functools.wraps(command)
    def taking(**given: Any) -> None:
        training = TrainingOptions(**{option.name: given.pop(option.name) for option in options})
        command(**given, training=training)

    taking.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return taking
