"""Reads a folder of loss curves: one CSV file for each run, and `labels.json` with the incidents in them.

A CSV file has the columns `step` and `loss`, and may have `grad_norm` and `learning_rate`. `labels.json` maps a file's
path in the folder to its windows: the indices of the first and the last row of each, and its kind. The kinds `spike`
and `slow` are incidents. Others (`planned`, `ambiguous`) count neither way.
"""

import csv
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LABELS = "labels.json"
INCIDENTS = ("spike", "slow")
MIXUP, POLICY = "mixup", "policy loss"
"""Names of two classes whose losses are odd: two modes, and mostly zero or of both signs."""

BEFORE_ROWS, AFTER_ROWS = 5, 5
"""Rows around a window whose alarms belong to it: labels are by eye, and a spike is known at its third outlying row."""


@dataclass(frozen=True)
class Window:
    """Rows of a curve that are not healthy."""

    first: int
    last: int
    kind: str

    @property
    def is_incident(self) -> bool:
        """Whether it should be found."""
        return self.kind in INCIDENTS

    def covers(self, row: int) -> bool:
        """Return whether an alarm at ``row`` belongs to the window."""
        return self.first - BEFORE_ROWS <= row <= self.last + AFTER_ROWS


@dataclass(frozen=True)
class Row:
    """The numbers of one logged step; None: not logged."""

    step: int
    loss: float | None
    grad_norm: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class Curve:
    """One run."""

    name: str
    rows: Sequence[Row]
    windows: Sequence[Window] = ()

    @property
    def family(self) -> str:
        """The class under which its false alarms are counted."""
        folder, _, file = self.name.rpartition("/")
        if "imagenet_vit" in file:
            return MIXUP
        return POLICY if folder.split("/")[-1] == "rl" else folder or "."

    @property
    def half(self) -> int:
        """0 or 1, by a hash of the name: rules are tuned on one half and tried on the other."""
        return zlib.crc32(self.name.encode()) % 2

    def healthy_rows(self) -> int:
        """Return how many rows are in no window."""
        return sum(not any(window.covers(row) for window in self.windows) for row in range(len(self.rows)))


def read_curves(folder: Path) -> list[Curve]:
    """Read the curves of a folder and its sub-folders, in the order of their names; no files without rows.

    Raises OSError and ValueError. Both name the file.
    """
    labels = _read_labels(folder / LABELS)
    paths = sorted(folder.rglob("*.csv"))
    curves = (_read(path, labels.get(path.relative_to(folder).as_posix(), ()), folder) for path in paths)
    return [curve for curve in curves if curve.rows]


def _read_labels(path: Path) -> dict[str, list[Window]]:
    if not path.exists():
        return {}
    try:
        return {
            name: sorted((_window(fields) for fields in windows), key=lambda window: window.first)
            for name, windows in json.loads(path.read_text()).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name}: {error!r}: wanted paths with lists of first, last and kind") from None


def _window(fields: Mapping[str, int | str]) -> Window:
    return Window(int(fields["first"]), int(fields["last"]), str(fields["kind"]))


def _read(path: Path, windows: Sequence[Window], folder: Path) -> Curve:
    name = path.relative_to(folder).as_posix()
    try:
        with path.open() as file:
            return Curve(name, [_row(index, fields) for index, fields in enumerate(csv.DictReader(file))], windows)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{name}: {error}") from None


def _row(index: int, fields: Mapping[str, str | None]) -> Row:
    step = _number(fields.get("step"))
    return Row(
        step=index if step is None or not math.isfinite(step) else int(step),
        loss=_number(fields.get("loss")),
        grad_norm=_number(fields.get("grad_norm")),
        learning_rate=_number(fields.get("learning_rate")),
    )


def _number(text: str | None) -> float | None:
    return float(text) if text else None
