"""Histories: lines of training from one origin. Each has a place of its own among a run's checkpoints.

::

    step-00000040/          the first history has its checkpoints in the folder itself
    history-0001.json       its record
    history-0002/step-...   a later one has a folder of its own
    history-0002.json       its record: parent, and the newest step of the parent that belongs to it

A start from the seed begins a history. So do a fallback to an older checkpoint, which undoes newer ones, and a
roll-back. A new history never writes to the path of an older one, and its record says where the parent's steps end. So
the steps of a line that was left are never taken for those of the present line, and nothing has to be removed for that.

A record is written once and never changed or removed. The history with the highest number is the present one. Agents
that begin the same history at the same time write the same bytes.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from holdfast_checkpoint.format.sealed_json import seal, unseal_format
from holdfast_proto.left_out import Windows, joined
from holdfast_proto.limits import is_count, is_unix_time

FIRST = 1
"""Number of the history that needs no folder of its own."""
MARKER = "history.json"
"""Copy of the record in the history's folder. Without it the folder is missing, maybe because it is not mounted."""

_FORMAT = 1
_RECORD = re.compile(r"history-(\d{4,})\.json")
_FOLDER = re.compile(r"history-(\d{4,})")


@dataclass(frozen=True, kw_only=True)
class HistoryRecord:
    """The beginning of a history, as its record keeps it."""

    number: int
    """Number of the history, from 1."""
    run: str
    """Name of the run that began it."""
    parent: int = 0
    """Number of the history that it continues; 0: it begins with the seed."""
    parent_step: int = -1
    """Newest step of the parent that belongs to this one."""
    since_unix_s: float = 0.0
    """Unix time of its beginning."""
    instance: str = ""
    """Instance of the run whose start began it; empty: a fallback or a roll-back began it."""
    left_out: Windows = ()
    """Data that no step of it trains on."""

    def encode(self) -> bytes:
        """Return the record's file. The same record gives the same bytes."""
        values = dataclasses.asdict(self)
        if not self.left_out:  # as in the records of versions that left out nothing
            del values["left_out"]
        return seal({"format": _FORMAT, **values})

    @classmethod
    def decode(cls, data: bytes) -> "HistoryRecord":
        """Invert :meth:`encode`. Raises SealError if a byte differs, ValueError for another format or odd values."""
        try:
            values = unseal_format(data, _FORMAT)
            left_out = joined((first, steps) for first, steps in values.pop("left_out", ()))
            record = cls(**values, left_out=left_out)
        except TypeError as error:
            raise ValueError(f"it has other fields: {error}") from None
        first = record.parent_step if record.parent_step != -1 else 0  # -1: none of the parent's steps
        if not all(map(is_count, (record.number, record.parent, first, *chain(*record.left_out)))):
            raise ValueError("a number of it is none")
        texts = (record.run, record.instance)
        if not all(isinstance(text, str) for text in texts) or not is_unix_time(record.since_unix_s):
            raise ValueError("a text or a time of it is none")
        return record


def record_name(number: int) -> str:
    """Return the name of a history's record."""
    return f"history-{number:04}.json"


def folder_name(number: int) -> str:
    """Return the name of a history's folder; empty for the first, which has none."""
    return "" if number <= FIRST else f"history-{number:04}"


def recorded(names: Iterable[str]) -> list[int]:
    """Return the numbers of the histories whose records are among ``names``, ascending."""
    return sorted(int(match[1]) for name in names if (match := _RECORD.fullmatch(name)))


def folders(names: Iterable[str]) -> list[int]:
    """Return the numbers of the histories whose folders are among ``names``, ascending."""
    return sorted(int(match[1]) for name in names if (match := _FOLDER.fullmatch(name)))


@dataclass(frozen=True)
class Stretch:
    """A part of the present line of training: the steps of ``history`` up to ``last``."""

    history: int
    last: int | None
    """Newest step that belongs to the line; None: all do."""

    def has(self, step: int) -> bool:
        """Return whether a step of this history belongs to the line."""
        return self.last is None or step <= self.last


def lineage(records: Mapping[int, HistoryRecord], number: int) -> list[Stretch]:
    """Return the line of training that ends with history ``number``, newest stretch first.

    A history without a record begins with the seed. A parent must have a lower number, so that a damaged record cannot
    make a circle.
    """
    line = [Stretch(number, None)]
    limit: int | None = None
    while (record := records.get(number)) is not None and record.parent and record.parent < number:
        # A fallback may go back beyond the beginning of its parent, so limits only fall from child to parent.
        limit = record.parent_step if limit is None else min(limit, record.parent_step)
        number = record.parent
        line.append(Stretch(number, limit))
    return line
