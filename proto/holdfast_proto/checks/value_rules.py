"""Rules for single values. Each raises RefusedError, which names the field and the value."""

import re
import sys
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import le
from pathlib import PurePosixPath
from typing import Any

from holdfast_proto.limits import LARGEST_COUNT, LATEST_UNIX_S, LOGGED_NAME_CHARACTERS, LONGEST_S, NAME_CHARACTERS
from holdfast_proto.v1 import limits_pb2
from holdfast_proto.vocabulary import NONFINITE_QUANTITIES, PHASES, TIME_USES

MOST_ITEMS = 2**16
"""In one repeated field."""

PATH_CHARACTERS = 4096
LARGEST_PID = 2**22
"""The kernel's PID_MAX_LIMIT."""

TEXT_CHARACTERS = 2**20
"""Of free text, such as a reason or the shapes of a call's inputs. Real ones are far shorter."""

_SOCKET_BYTES = 107
"""Longest path of a unix socket that the kernel takes."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FAULT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_BACKEND = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STREAM_ID = re.compile(r"\d{1,20}(-\d{1,20})?")

Rule = Callable[[Any, str], None]
"""Checks a value of a field. Raises RefusedError, whose text begins with the name of the field."""


class RefusedError(ValueError):
    """A message holds a value that it cannot hold. The text is one line: the field and the value."""


@dataclass(frozen=True)
class Range:
    """The rule of a number: it is from ``least`` to ``most``, both included. NaN never is."""

    least: float
    most: float

    def __call__(self, value: float, name: str) -> None:
        """Check a number."""
        if not self.least <= value <= self.most:
            raise RefusedError(f"{name} is {value}: {self.least:.16g} to {self.most:.16g} is expected")

    def are_good(self, values: Sequence[float]) -> bool:
        """Return whether all numbers pass, without a call for each: there may be a thousand ranks."""
        return all(map(le, repeat(self.least), values)) and all(map(le, values, repeat(self.most)))


@dataclass(frozen=True)
class Length:
    """The rule of a text that may have any characters, of which there are ``most`` at most."""

    most: int

    def __call__(self, value: str | bytes, name: str) -> None:
        """Check a text."""
        if len(value) > self.most:
            raise RefusedError(f"{name} has {len(value)} characters, more than {self.most}")

    def are_good(self, values: Sequence[str | bytes]) -> bool:
        """Return whether all texts pass."""
        return all(map(le, map(len, values), repeat(self.most)))


@dataclass(frozen=True)
class OneOf:
    """The rule of a value that is among those ``known``."""

    known: frozenset[object]

    def __call__(self, value: object, name: str) -> None:
        """Check a value."""
        if value not in self.known:
            raise RefusedError(f"{name} has the unknown value {repr(value)[:80]}")

    def are_good(self, values: Sequence[object]) -> bool:
        """Return whether all values pass."""
        return self.known.issuperset(values)


ANY_FINITE = Range(-sys.float_info.max, sys.float_info.max)
COUNT = Range(0, LARGEST_COUNT)
COUNT_OR_NONE = Range(-1, LARGEST_COUNT)
SECONDS = Range(0.0, LONGEST_S)
UNIX_S = Range(0.0, LATEST_UNIX_S)
PID = Range(0, LARGEST_PID)
TEXT = Length(TEXT_CHARACTERS)


def check_line(value: str, field: str, most: int = PATH_CHARACTERS) -> None:
    """Check a string that is shown as part of a line."""
    Length(most)(value, field)
    if not value.isprintable():
        raise RefusedError(f"{field} is {value[:80]!r}, which cannot be shown")


def check_length(values: Sized, field: str, most: int = MOST_ITEMS) -> None:
    """Check the length of a repeated field or of a map."""
    if len(values) > most:
        raise RefusedError(f"{field} has {len(values)} items, more than {most}")


def check_node_name(value: str, field: str) -> None:
    """Check a node's name: it is part of keys, of labels and of lines for people."""
    if not (0 < len(value) <= NAME_CHARACTERS and value.isprintable()):
        raise RefusedError(f"{field} is {value[:80]!r}: a node's name has 1 to {NAME_CHARACTERS} printable characters")


def check_file(value: str, field: str) -> None:
    """Check the name of an incident's file, which is within the incident's folder."""
    path = PurePosixPath(value)
    within = value and not path.is_absolute() and ".." not in path.parts
    if not (within and value.isprintable() and len(value) <= PATH_CHARACTERS):
        raise RefusedError(f"{field} names {value[:80]!r}: a file within the incident's folder is expected")


def check_id(value: str, field: str) -> None:
    """Check the id of an incident or a suspicion, which names a folder."""
    _matching(_ID, "an id has letters, digits, '.', '_' and '-'")(value, field)


def _matching(form: re.Pattern[str], expected: str) -> Rule:
    def check(value: str, name: str) -> None:
        if not form.fullmatch(value):
            raise RefusedError(f"{name} is {value[:80]!r}: {expected}")

    return check


def _check_module(value: str, name: str) -> None:
    if len(value) > NAME_CHARACTERS or not all(part.isidentifier() for part in value.split(".")):
        raise RefusedError(f"{name} names {value[:80]!r}, which is no module")


def _check_socket(value: str, name: str) -> None:
    if not value.startswith("/") or "\0" in value or len(value.encode()) > _SOCKET_BYTES:
        raise RefusedError(f"{name} is {value[:80]!r}, which is no path of a socket")


KINDS: dict[int, Rule | None] = {
    limits_pb2.KIND_ANYTHING: None,
    limits_pb2.KIND_FINITE: ANY_FINITE,
    limits_pb2.KIND_PID: PID,
    limits_pb2.KIND_PHASE: OneOf(PHASES),
    limits_pb2.KIND_TIME_USE: OneOf(frozenset(TIME_USES)),
    limits_pb2.KIND_NAME: Length(NAME_CHARACTERS),
    limits_pb2.KIND_LONG_NAME: Length(16 * NAME_CHARACTERS),
    limits_pb2.KIND_SHORT_LINE: partial(check_line, most=NAME_CHARACTERS),
    limits_pb2.KIND_LINE: check_line,
    limits_pb2.KIND_NODE_NAME: check_node_name,
    limits_pb2.KIND_LOGGED_NAME: partial(check_line, most=LOGGED_NAME_CHARACTERS),
    limits_pb2.KIND_FAULT_NAME: _matching(_FAULT_NAME, "name one of `holdfast inject --list`"),
    limits_pb2.KIND_QUANTITY: OneOf(frozenset(NONFINITE_QUANTITIES)),
    limits_pb2.KIND_ID: check_id,
    limits_pb2.KIND_STREAM_ID: _matching(_STREAM_ID, "the id of a stream's entry is expected"),
    limits_pb2.KIND_FILE: check_file,
    limits_pb2.KIND_BACKEND: _matching(_BACKEND, "a backend's name has up to 64 letters, digits, '_' and '-'"),
    limits_pb2.KIND_MODULE: _check_module,
    limits_pb2.KIND_SOCKET: _check_socket,
}
"""Kind -> rule; None: anything passes. The other kinds depend on the run's size."""
