"""Tasks for ranks that train. The benchmark replaces a file, and each rank reads it in every step."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast_base.files import replace_file

FOLDER_VARIABLE = "DETECTION_FOLDER"
FIRST_STEP_VARIABLE = "DETECTION_FIRST_STEP_S"
_FILE = "tasks.json"


@dataclass(frozen=True)
class Task:
    """Something that ranks do in one step."""

    step: int = -1
    what: str = ""
    """``eval`` or ``checkpoint``: stay in that phase. ``duplicate``: train again on samples of an earlier step."""
    rank: int = -1
    """Rank that does it; -1: all ranks."""
    seconds: float = 0.0


def publish(folder: Path, task: Task) -> None:
    """Replace the present task."""
    replace_file(folder / _FILE, json.dumps(asdict(task)).encode())


class Tasks:
    """The tasks as one rank reads them."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / _FILE
        self._rank = rank
        self._seen_ns = -1
        self._task = Task()

    def of(self, step: int) -> Task:
        """Return this rank's task in a step: an empty one if the present task is for another rank or step."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return Task()
        if changed_ns != self._seen_ns:
            self._task, self._seen_ns = Task(**json.loads(self._path.read_text())), changed_ns
        mine = self._task.step == step and self._task.rank in (-1, self._rank)
        return self._task if mine else Task()
