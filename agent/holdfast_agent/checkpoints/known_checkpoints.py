"""Remembers on this node which checkpoints exist, so that missing ones are not taken for ones that never existed."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast_base.files import read_regular
from holdfast_checkpoint.checkpoint_errors import CheckpointUnavailable, write_errors
from holdfast_checkpoint.format.durable import make_directory, write_file
from holdfast_checkpoint.format.history import record_name
from holdfast_proto.limits import is_count

_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class _Known:
    location: str
    history: int = 0
    steps: tuple[int, ...] = ()


class KnownCheckpoints:
    """The checkpoints at ``location`` that this node's agents have seen, kept in ``file`` or else in memory."""

    def __init__(self, location: str, file: Path | None = None) -> None:
        self._location = location
        self._file = file
        self._known = self._written = self._load()

    @property
    def history(self) -> int:
        """Number of the newest history that this node has seen; 0: none."""
        return self._known.history

    @property
    def way_out(self) -> str:
        """End of a message: what to do if checkpoints were removed on purpose; empty without a file."""
        return f"; if checkpoints were removed on purpose, remove {self._file} too: it lists them" if self._file else ""

    def check_history(self, history: int) -> None:
        """Raise CheckpointUnavailable if this node has seen a newer history than ``history``, the newest there is."""
        if history < self._known.history:
            raise CheckpointUnavailable(
                f"--checkpoints {self._location}: {record_name(self._known.history)} is not there, and was:"
                f" mount or bring back what was moved away{self.way_out}"
            )

    def vanished(self, history: int, steps: Collection[int], kept: int) -> set[int]:
        """Return the steps that were seen, are not among ``steps``, and that pruning cannot have removed.

        Pruning keeps the newest ``kept`` checkpoints, so it removes a step only if that many newer ones exist.
        """
        if history != self._known.history:
            return set()
        gone = set(self._known.steps) - set(steps)
        return {step for step in gone if sum(newer > step for newer in steps) < kept}

    def note(self, history: int, steps: Collection[int]) -> None:
        """Remember the steps that exist or should come back. Raises CheckpointError if the file cannot be written."""
        known = _Known(self._location, history, tuple(sorted(steps)))
        if known == self._written or not (steps or self._known.history):
            return
        self._known = known
        if self._file is not None:
            with write_errors(self._file.parent):
                make_directory(self._file.parent)
                write_file(self._file, json.dumps(asdict(known)).encode())
        self._written = known  # after an error, the next call writes it

    def enter(self, history: int, parent_step: int) -> None:
        """Note a new history that continues after ``parent_step`` of the present one. Raises CheckpointError."""
        self.note(history, [step for step in self._known.steps if step <= parent_step])

    def _load(self) -> _Known:
        empty = _Known(self._location)
        if self._file is None:
            return empty
        try:
            found = json.loads(read_regular(self._file, _MOST_BYTES))
            known = _Known(found["location"], found["history"], tuple(found["steps"]))
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return empty  # the first agent of this node, or a file of another version
        is_sound = known.location == self._location and all(map(is_count, (known.history, *known.steps)))
        return known if is_sound else empty
