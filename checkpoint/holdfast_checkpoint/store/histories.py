"""The histories of a place of checkpoints: which there are, which is the present one, and where its steps are.

``holdfast_checkpoint.format.history`` says what a history is and how a place is laid out.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from holdfast_checkpoint.checkpoint_errors import CheckpointUnavailable, CheckpointUnreadable, read_errors, write_errors
from holdfast_checkpoint.format.bad_loss import BadLossRecord, bad_loss_name
from holdfast_checkpoint.format.durable import make_directory, write_file
from holdfast_checkpoint.format.history import (
    FIRST,
    MARKER,
    HistoryRecord,
    Stretch,
    folder_name,
    folders,
    lineage,
    record_name,
    recorded,
)
from holdfast_checkpoint.store.object_store import ObjectStore
from holdfast_proto.left_out import Windows

Part = TypeVar("Part")


class RecordPlace(Protocol):
    """A place with histories and their records. Methods raise CheckpointError."""

    @property
    def name(self) -> str:
        """Folder or URL of the place, for messages."""

    def names(self) -> set[str]:
        """Return the names at the top of the place, and those in histories' folders as ``FOLDER/NAME``."""

    def read(self, name: str) -> bytes:
        """Return a file's contents. Raises CheckpointUnavailable if it is missing."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, durably."""


class FolderPlace:
    """A place that is a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        """Return the path."""
        return str(self._path)

    def names(self) -> set[str]:
        """Return the names in the folder and in those of histories."""
        top = _listed(self._path)
        inner = {
            f"{folder_name(number)}/{name}"
            for number in folders(top)
            for name in _listed(self._path / folder_name(number))
        }
        return top | inner

    def read(self, name: str) -> bytes:
        """Read a file."""
        with read_errors(self._path / name):
            return (self._path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Write a file, durably, unless it has these contents already."""
        path = self._path / name
        with write_errors(path.parent):
            make_directory(path.parent)
            if not path.exists() or path.read_bytes() != data:
                write_file(path, data)


class StorePlace:
    """A place that is an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def name(self) -> str:
        """Return the URL."""
        return self._store.url

    def names(self) -> set[str]:
        """Return the names of all objects, cut off after the second part."""
        found: set[str] = set()
        for name in self._store.listing():
            first, _, rest = name.partition("/")
            found.add(first)
            if rest and folders([first]):
                found.add(f"{first}/{rest.partition('/')[0]}")
        return found

    def read(self, name: str) -> bytes:
        """Read an object."""
        return self._store.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Put an object."""
        self._store.write(name, data)


class Histories(Generic[Part]):
    """The histories of ``place``, each as a ``Part`` that ``open_part`` returns for its number.

    Every method raises CheckpointError if the place cannot be used.
    """

    def __init__(self, place: RecordPlace, open_part: Callable[[int], Part]) -> None:
        self.place = place
        self.records: dict[int, HistoryRecord] = {}
        """Records by number, as last read."""
        self._open_part = open_part
        self._parts: dict[int, Part] = {}
        self._line = lineage({}, FIRST)

    @property
    def current(self) -> int:
        """Number of the present history."""
        return self._line[0].history

    def refresh(self) -> None:
        """Read which histories there are.

        Raises CheckpointUnavailable if a record or a folder is there without the other. The other may come back, and
        without it the present line would be mistaken for an older one.
        """
        names = self.place.names()
        for number in recorded(names):
            if number not in self.records:
                self.records[number] = self._read(number)
        line = lineage(self.records, max(recorded(names), default=FIRST))
        for stretch in line:
            folder = folder_name(stretch.history)
            if folder and f"{folder}/{MARKER}" not in names:
                raise CheckpointUnavailable(self._lacks(folder, record_name(stretch.history)))
        for number in folders(names):
            has_steps = any(name.startswith(f"{folder_name(number)}/step-") for name in names)
            if number > line[0].history and has_steps:
                raise CheckpointUnavailable(self._lacks(record_name(number), folder_name(number)))
        self._line = line

    def begin(self, record: HistoryRecord) -> None:
        """Make ``record`` the present history, without a checkpoint. Any number of agents may begin the same one."""
        # The folder comes first: a record without its folder would stop every reader. After a crash in between, the
        # history does not exist yet, and the next try writes the same two files.
        if record.number != FIRST:
            self.place.write(f"{folder_name(record.number)}/{MARKER}", record.encode())
        self.place.write(record_name(record.number), record.encode())
        self.refresh()

    def note_bad_loss(self, record: BadLossRecord) -> None:
        """Record that checkpoints of the present history may hold a bad state. Any number of agents may do so."""
        self.place.write(bad_loss_name(self.current), record.encode())

    def bad_loss(self, number: int) -> BadLossRecord | None:
        """Return the record of a history that has ended at a bad loss, or None."""
        name = bad_loss_name(number)
        return BadLossRecord.decode(self.place.read(name)) if name in self.place.names() else None

    def part(self, number: int) -> Part:
        """Return the history of this number."""
        if number not in self._parts:
            self._parts[number] = self._open_part(number)
        return self._parts[number]

    def line(self) -> Iterator[tuple[Part, Stretch]]:
        """Yield the histories of the present line, newest first, each with the steps that belong to the line."""
        for stretch in self._line:
            yield self.part(stretch.history), stretch

    def of_step(self, step: int) -> Part:
        """Return the history that a step of the present line belongs to."""
        # Limits only fall along the line. So of all stretches that have the step, the oldest one has written it.
        owners = [stretch.history for stretch in self._line if stretch.has(step)]
        return self.part(owners[-1])

    def older(self) -> list[Part]:
        """Return all histories before the present one, also those of lines that were left."""
        return [self.part(number) for number in range(FIRST, self.current)]

    @property
    def left_out(self) -> Windows:
        """Data that the present history leaves out."""
        record = self.records.get(self.current)
        return () if record is None else record.left_out

    def run_of(self, number: int) -> str | None:
        """Return the name of the run that a history belongs to, or None without a record."""
        record = self.records.get(number)
        return None if record is None else record.run

    def _read(self, number: int) -> HistoryRecord:
        name = record_name(number)
        try:
            return HistoryRecord.decode(self.place.read(name))
        except ValueError as error:
            raise CheckpointUnreadable(
                f"{self.place.name}/{name} {error}: bring it back from a copy (the file {MARKER} in the folder"
                f" {folder_name(number) or 'of the history'} is one)"
            ) from error

    def _lacks(self, missing: str, there: str) -> str:
        return f"{self.place.name}/{missing} is missing, and {there} is there: bring it back"


def _listed(path: Path) -> set[str]:
    with read_errors(path):
        try:
            return {entry.name for entry in path.iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            return set()
