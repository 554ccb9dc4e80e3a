"""Parses the stacks of a process from py-spy's JSON, and renders them as text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast_proto.limits import is_count

_Kind = TypeVar("_Kind", bool, int, str)


class StackDumpError(ValueError):
    """A text is not the stacks of a process."""


@dataclass(frozen=True)
class Frame:
    """One call. ``file`` is the source of Python code, or the library of native code."""

    function: str
    file: str
    line: int
    """Line in the source; 0 in native code without debug information."""

    @property
    def is_python(self) -> bool:
        """Whether it is Python code. Code that was typed in or frozen has a name in angle brackets."""
        return self.file.endswith(".py") or self.file.startswith("<")

    def __str__(self) -> str:
        """``function (file.py:12)``."""
        place = f"{Path(self.file).name}:{self.line}" if self.line else Path(self.file).name
        return f"{self.function} ({place})"


@dataclass(frozen=True)
class Thread:
    """One thread. The innermost of its ``frames`` comes first."""

    system_id: int | None
    name: str
    active: bool
    """Whether it runs or waits for a core. Otherwise it sleeps in the kernel."""
    owns_gil: bool
    frames: tuple[Frame, ...]


def parse(text: str) -> tuple[Thread, ...]:
    """Parse the output of ``py-spy dump --json``. Raises StackDumpError if it is anything else."""
    try:
        return tuple(
            Thread(
                system_id=None if (number := entry["os_thread_id"]) is None else _of(int, number),
                name=_of(str, entry["thread_name"] or ""),
                active=_of(bool, entry["active"]),
                owns_gil=_of(bool, entry["owns_gil"]),
                frames=tuple(map(_frame, entry["frames"])),
            )
            for entry in json.loads(text)
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StackDumpError(f"not the stacks of a process: {error!r}") from None


def _frame(entry: dict[str, object]) -> Frame:
    return Frame(_of(str, entry["name"]), _of(str, entry["filename"]), _of(int, entry["line"]))


def _of(kind: type[_Kind], value: object) -> _Kind:
    if type(value) is not kind or (isinstance(value, int) and not is_count(int(value))):
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def render(threads: Sequence[Thread], training_thread: int) -> str:
    """Return the stacks of a process as text for people. The thread that trains, by its number, comes first."""
    return "\n".join(_render(thread) for thread in sorted(threads, key=lambda each: each.system_id != training_thread))


def _render(thread: Thread) -> str:
    state = "active" if thread.active else "idle"
    gil = ", holds the GIL" if thread.owns_gil else ""
    lines = [f'thread {thread.system_id} ({state}{gil}): "{thread.name}"', *(f"    {each}" for each in thread.frames)]
    return "\n".join(lines) + "\n"
