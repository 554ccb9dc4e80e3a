"""Counts the items of all containers that an object reaches, by the way to them: it finds new ones by itself.

A way names attributes, fields of messages and the classes of detectors. All keys of a mapping, and all items of a
sequence, are one way: ``state.incidents[].actions``.
"""

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

from google.protobuf.message import Message

_OURS = ("holdfast_",)
_CONTAINERS = (Mapping, list, tuple, Set, deque)
_LONG = 256
"""Length from which a text counts as a container: names, ids and lines are shorter."""


def sizes_of(name: str, root: object) -> Counter[str]:
    """Return way -> number of items, over all containers on that way. An object counts where it is found first."""
    counted: Counter[str] = Counter()
    seen: dict[int, object] = {}  # with the objects: of one that is gone, another may get the id
    waiting = deque([(name, root)])
    while waiting:
        way, value = waiting.popleft()
        if isinstance(value, (str, bytes)):
            counted[way] += len(value) if len(value) >= _LONG else 0
            continue
        if id(value) in seen or isinstance(value, (int, float, type(None))):
            continue
        seen[id(value)] = value
        found = list(_inside(value))
        if isinstance(value, _CONTAINERS) or _is_repeated(value):
            counted[way] += len(found)
        waiting.extend((way + step, item) for step, item in found)
    return +counted


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, and the step to it."""
    if isinstance(value, Message):
        yield from ((f".{field.name}", item) for field, item in value.ListFields())
    elif hasattr(value, "values") and (isinstance(value, Mapping) or _is_repeated(value)):
        yield from (("[]", item) for item in value.values())
    elif isinstance(value, _CONTAINERS) or _is_repeated(value):
        yield from (("[]", item) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value))
    elif type(value).__module__.startswith(_OURS):
        yield from ((f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def _is_repeated(value: object) -> bool:
    """Whether this is a repeated field or a map of a message: their classes are the library's own."""
    return type(value).__module__.startswith(("google._upb", "google.protobuf")) and hasattr(value, "__len__")
