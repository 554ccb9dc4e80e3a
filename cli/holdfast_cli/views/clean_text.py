"""Makes texts from outside safe for a terminal: names, exceptions and lines of logs may hold anything."""

import re
from typing import Any, TypeVar

from google.protobuf.message import Message

from holdfast_agent.evidence.recorder_dump import printable

_Message = TypeVar("_Message", bound=Message)

_TAB_COLUMNS = 4
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
"""Sequences that steer a terminal: colours, the cursor, its title. See ECMA-48."""


def one_line(text: str) -> str:
    """Return ``text`` on one line, without characters that steer a terminal."""
    return text if text.isprintable() else printable(" ".join(_ESCAPES.sub("", text).split()))


def some_lines(text: str) -> str:
    """Return ``text`` with its line ends, without characters that steer a terminal."""
    if text.isprintable():
        return text
    return "\n".join(printable(_ESCAPES.sub("", line).expandtabs(_TAB_COLUMNS)) for line in text.splitlines())


def cleaned(message: _Message) -> _Message:
    """Return a copy of ``message`` whose texts are all safe, those in messages within it too."""
    copy = type(message)()
    copy.CopyFrom(message)
    _clean(copy)
    return copy


def _clean(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _clean_map(value, holds_messages=field.message_type.fields_by_name["value"].message_type is not None)
        elif field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                _clean(each)
        elif field.type == field.TYPE_STRING and field.is_repeated:
            value[:] = [some_lines(each) for each in value]
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, some_lines(value))


def _clean_map(entries: Any, *, holds_messages: bool) -> None:  # noqa: ANN401 - protobuf has a class for each kind of map
    for key in list(entries):
        value = entries[key]
        if holds_messages:
            _clean(value)
            continue
        if not isinstance(key, str) or (key.isprintable() and not isinstance(value, str)):
            continue
        del entries[key]
        entries[one_line(key)] = one_line(value) if isinstance(value, str) else value
