"""Remembers on this node which checkpoint was the newest: a place that is away is not taken for an empty one."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast_proto.checkpoint.durable import make_directory, write_file
from holdfast_proto.checkpoint.errors import CheckpointUnavailable, write_errors
from holdfast_proto.checkpoint.shard_index import step_directory


@dataclass(frozen=True)
class _Known:
    location: str
    history: int
    step: int


class KnownCheckpoints:
    """The newest checkpoint at ``location`` that agents of this node have seen, in ``file``; without one, in memory."""

    def __init__(self, location: str, file: Path | None = None) -> None:
        self._location = location
        self._file = file
        self._known = self._load()

    @property
    def history(self) -> int:
        """Number of the newest history that has been seen; 0: none."""
        return self._known.history if self._known is not None else 0

    def check(self, history: int, steps: Collection[int]) -> None:
        """Raise CheckpointUnavailable if what was seen before is neither there nor followed by something newer."""
        known = self._known
        if known is None or history > known.history:
            return
        if history == known.history and (known.step < 0 or max(steps, default=-1) >= known.step):
            return
        forget = f", or remove {self._file} to go on from what is there" if self._file else ""
        raise CheckpointUnavailable(
            f"--checkpoints {self._location}: {step_directory(Path(), known.step).name} is not there, and was committed"
            f" there: mount or bring back what was moved away{forget}; --from-scratch begins from the seed"
        )

    def note(self, history: int, steps: Collection[int]) -> None:
        """Remember the newest of ``steps``, which are there now. Raises CheckpointError if that cannot be kept."""
        known = _Known(self._location, history, max(steps, default=-1))
        if known == self._known or (known.step < 0 and self._known is None):
            return
        self._known = known
        if self._file is not None:
            with write_errors(self._file.parent):
                make_directory(self._file.parent)
                write_file(self._file, json.dumps(asdict(known)).encode())

    def _load(self) -> _Known | None:
        if self._file is None:
            return None
        try:
            known = _Known(**json.loads(self._file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None  # the first agent of this node, or a file of another version
        return known if known.location == self._location else None
