"""Messages and their enum values as words and as JSON for scripts."""

import json
import math
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message


def to_json(message: Message) -> dict[str, Any]:
    """Return ``message`` with its own field names, integers as integers and enum values as short lower-case words.

    Optional fields and messages that are not set are left out; numbers that JSON does not know are null.
    """
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        result[field.name] = _value(field, getattr(message, field.name))
    return result


def print_json(value: object) -> None:
    """Print ``value`` as one line on stdout."""
    print(json.dumps(value), flush=True)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        return {str(key): _single(entry, value[key]) for key in value}
    if field.is_repeated:
        return [_single(field, item) for item in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        return enum_word(field.enum_type, value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def enum_word(kind: EnumDescriptor, number: int) -> str | int:
    """Return ``RUN_PHASE_RUNNING`` as ``running``, and an unknown number as itself.

    The prefix is that of the value 0, whose name ends in UNSPECIFIED.
    """
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    value = kind.values_by_number.get(number)
    return number if value is None else value.name.removeprefix(prefix).lower()
