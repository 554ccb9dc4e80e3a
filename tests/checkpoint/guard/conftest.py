from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.guard.examination import Examiner
from holdfast_checkpoint.guard.folder_guard import FolderGuard, GuardTimes, Judgment
from holdfast_checkpoint.guard.paced_reading import Pace
from tests.support.foreign_checkpoints import TinyTraining

QUIET_S, INCOMPLETE_S = 10.0, 600.0


@dataclass
class GuardedFolder:
    """A guard with a clock of its own. The files of the first look are as old as the test wants."""

    folder: Path
    sample_bytes: int | None = 1 << 20
    training: TinyTraining = field(default_factory=TinyTraining)
    now_s: float = 1000.0
    age_s: float = 3600.0
    guard: FolderGuard = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.guard = FolderGuard(
            self.folder,
            Examiner(sample_bytes=self.sample_bytes, pace=Pace()),
            GuardTimes(quiet_s=QUIET_S, incomplete_after_s=INCOMPLETE_S),
            clock=lambda: self.now_s,
            wall_clock=lambda: max((path.lstat().st_mtime for path in self.folder.rglob("*")), default=0) + self.age_s,
        )

    def save(self, write: Callable[..., Path], step: int, **options: Any) -> Path:
        """Write a checkpoint as a framework does, and train another step."""
        place = write(self.folder, step, self.training, **options)
        self.training.step()
        return place

    @property
    def newest_good_step(self) -> int | None:
        return self.guard.newest_good.step if self.guard.newest_good else None

    def look(self, after_s: float = 0.0, *, is_last: bool = False) -> list[Judgment]:
        self.now_s += after_s
        return list(self.guard.look(is_last=is_last))

    def settle(self) -> list[Judgment]:
        """Look, and look again after the quiet time."""
        return [*self.look(), *self.look(QUIET_S)]


@pytest.fixture
def training() -> TinyTraining:
    return TinyTraining()


@pytest.fixture
def guarded(tmp_path: Path) -> GuardedFolder:
    return GuardedFolder(tmp_path / "checkpoints")


@pytest.fixture
def reading_all(tmp_path: Path) -> GuardedFolder:
    return GuardedFolder(tmp_path / "checkpoints", sample_bytes=None)
