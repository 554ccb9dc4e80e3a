"""Messages as JSON and back: the one spelling of enum values that files, ``--json``, metrics and people see."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

if TYPE_CHECKING:
    from google._upb import _message as upb

_Message = TypeVar("_Message", bound=Message)

# Protobuf has two implementations, and types of its own for each.
_Kind: TypeAlias = "Descriptor | upb.Descriptor"
_Enum: TypeAlias = "EnumDescriptor | upb.EnumDescriptor"
_Field: TypeAlias = "FieldDescriptor | upb.FieldDescriptor"


def enum_name(kind: "EnumTypeWrapper | _Enum", number: int) -> str:
    """Return ``running`` for ``RUN_PHASE_RUNNING``; a number that this version does not know as itself."""
    descriptor = kind.DESCRIPTOR if isinstance(kind, EnumTypeWrapper) else kind
    value = descriptor.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix(_prefix(descriptor)).lower()


def enum_names(kind: EnumTypeWrapper) -> dict[str, int]:
    """Return :func:`enum_name` -> number of all values but 0, which means that none is set."""
    return {enum_name(kind, number): number for number in kind.values() if number}


def to_json(message: Message) -> dict[str, Any]:
    """Return ``message`` with its own field names, integers as integers and enum values as :func:`enum_name`.

    Optional fields and messages that are not set are left out. NaN and infinity, which JSON does not know, are null.
    """
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        entry = _map_value(field)
        if entry is not None:
            result[field.name] = {str(key): _single(entry, value[key]) for key in value}
        elif field.is_repeated:
            result[field.name] = [_single(field, item) for item in value]
        else:
            result[field.name] = _single(field, value)
    return result


def from_json(data: Mapping[str, Any], message: _Message) -> _Message:
    """Fill ``message`` from what :func:`to_json` has made, and return it. Unknown fields are ignored.

    Also reads what earlier versions wrote: enum values with their prefix, 64-bit integers as strings. Raises
    ParseError, ValueError, TypeError or AttributeError if the data is of another kind.
    """
    try:
        return ParseDict(_with_enum_names(data, message.DESCRIPTOR), message, ignore_unknown_fields=True)
    except (OverflowError, RecursionError, SystemError) as error:
        # Protobuf fails with SystemError for a name that has no UTF-8: JSON can spell a lone surrogate.
        raise ValueError(f"a value is out of range: {error}") from None


def _prefix(kind: _Enum) -> str:
    """Return what the names of an enum's values have in common; the name of the value 0 ends in UNSPECIFIED."""
    return kind.values_by_number[0].name.removesuffix("UNSPECIFIED")


def _map_value(field: _Field) -> "_Field | None":
    """Return the field of a map's values; None if ``field`` is no map."""
    kind = field.message_type
    return kind.fields_by_name["value"] if kind is not None and kind.GetOptions().map_entry else None


def _single(field: _Field, value: object) -> object:
    if isinstance(value, Message):
        return to_json(value)
    if field.enum_type is not None and isinstance(value, int):
        return enum_name(field.enum_type, value) if value in field.enum_type.values_by_number else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _with_enum_names(data: Mapping[str, Any], kind: _Kind) -> dict[str, Any]:
    """Return ``data`` with enum values as protobuf's own reader wants them: by their full name."""
    result: dict[str, Any] = {}
    for name, value in data.items():
        field = kind.fields_by_name.get(name)
        entry = None if field is None else _map_value(field)
        if field is None:
            result[name] = value
        elif entry is not None and isinstance(value, Mapping):
            result[name] = {key: _with_full_name(entry, item) for key, item in value.items()}
        elif field.is_repeated and isinstance(value, list):
            result[name] = [_with_full_name(field, item) for item in value]
        else:
            result[name] = _with_full_name(field, value)
    return result


def _with_full_name(field: _Field, value: object) -> object:
    if field.message_type is not None and isinstance(value, Mapping):
        return _with_enum_names(value, field.message_type)
    if field.enum_type is not None and isinstance(value, str):
        full = _prefix(field.enum_type) + value.upper()
        return full if full in field.enum_type.values_by_name else value
    return value
