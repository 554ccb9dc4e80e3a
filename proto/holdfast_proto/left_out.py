"""Data that no step trains on, because they may have made the loss bad.

Data are numbered by the steps that train on them while none are left out. So a window of 12 that begins with data 41
means: the step that would train on data 41 trains on data 53. The numbers stay the same, whatever is left out later.
"""

import re
from collections.abc import Iterable
from itertools import chain

from holdfast_proto.v1 import session_pb2 as session

Windows = tuple[tuple[int, int], ...]
"""Windows of data, ascending and without overlap: the first number of each, and how many."""

MOST_WINDOWS = 1024
_WORDS = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")


def joined(windows: Iterable[tuple[int, int]]) -> Windows:
    """Return windows in order. Those that overlap or follow on each other become one."""
    found: list[tuple[int, int]] = []
    for first, steps in sorted(windows):
        if steps < 1:
            continue
        before, length = found[-1] if found else (first, 0)
        if first <= before + length:
            found[-1:] = [(before, max(length, first + steps - before))]
        else:
            found.append((first, steps))
    return tuple(found)


def data_of(step: int, windows: Windows) -> int:
    """Return the number of the data that a step trains on, if all ``windows`` are left out."""
    data = step
    for first, steps in windows:
        if first > data:
            break
        data += steps
    return data


def next_window(data: int, windows: Windows) -> tuple[int, int] | None:
    """Return the first window that is not over before ``data``, as far as it is left: its first number, and how many.

    None: nothing is left out from ``data`` on.
    """
    for first, steps in windows:
        if first + steps > data:
            begin = max(first, data)
            return begin, first + steps - begin
    return None


def to_messages(windows: Windows) -> list[session.LeftOut]:
    """Return windows for the wire."""
    return [session.LeftOut(first=first, steps=steps) for first, steps in windows]


def from_messages(messages: Iterable[session.LeftOut]) -> Windows:
    """Return windows from the wire, in order."""
    return joined((one.first, one.steps) for one in messages)


def parse(words: Iterable[str]) -> Windows:
    """Return the windows of texts such as ``41-52`` or ``60,70-79``. Raises ValueError for anything else."""
    windows = []
    for word in chain.from_iterable(text.split(",") for text in words):
        found = _WORDS.fullmatch(word.strip())
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"{word!r} names no data: write the first and the last one, such as 41-52")
        windows.append((int(found[1]), int(found[2] or found[1]) - int(found[1]) + 1))
    if len(windows) > MOST_WINDOWS:
        raise ValueError(f"{len(windows)} windows of data are too many: {MOST_WINDOWS} is the most")
    return joined(windows)


def shown(windows: Windows) -> str:
    """Invert :func:`parse`, in one text."""
    return ",".join(str(first) if steps == 1 else f"{first}-{first + steps - 1}" for first, steps in windows)
