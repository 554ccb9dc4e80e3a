"""Frozen dataclasses as JSON and back, guided by their type hints.

Carries numbers, strings, None, bytes and protobuf messages (in base64), tuples, frozensets, mappings and dataclasses
of these, and refuses everything else. A field that is declared as a union of dataclasses, or as a family of which
only the members are known (see ``Codec``), carries the name of the one that it holds.
"""

import base64
import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError, Message

_KIND = "is"
"""Holds the name of a dataclass where the type hint leaves several."""


class CodecError(Exception):
    """A value cannot be carried, or JSON does not hold what it should; the message says where."""


class Codec:
    """``families``: base class -> its members by the names that stand for them."""

    def __init__(self, families: Mapping[type, Mapping[str, type]]) -> None:
        self._families = families

    def encode(self, value: object, hint: Any) -> Any:
        """Return ``value``, which is of type ``hint``, as what json.dumps takes. Raises CodecError."""
        if value is None and types.NoneType in _options(hint):
            return None
        hint = _present(hint)
        members = self._members(hint)
        if members is not None:
            return self._encode_member(value, members)
        if isinstance(value, Message) or (hint is bytes and isinstance(value, bytes)):
            return _encode_binary(value)
        if dataclasses.is_dataclass(value):
            return self._encode_fields(value)
        return value if _is_plain(value, hint) else self._encode_items(value, hint)

    def _encode_items(self, value: object, hint: Any) -> list[Any]:
        arguments = typing.get_args(hint)
        if isinstance(value, Mapping) and arguments:
            key, item = arguments
            return [[self.encode(k, key), self.encode(v, item)] for k, v in value.items()]
        if isinstance(value, frozenset) and arguments:
            return sorted((self.encode(item, arguments[0]) for item in value), key=json.dumps)
        if isinstance(value, tuple) and arguments:
            return [self.encode(item, each) for item, each in zip(value, _items(arguments, len(value)), strict=True)]
        raise CodecError(f"{value!r:.80} is not of type {hint}, or of one that cannot be carried")

    def _encode_member(self, value: object, members: Mapping[str, type]) -> dict[str, Any]:
        name = next((name for name, member in members.items() if member is type(value)), None)
        if name is None:
            raise CodecError(f"{type(value).__name__} is none of {', '.join(members)}")
        return {_KIND: name, **self._encode_fields(value)}

    def decode(self, data: Any, hint: Any) -> Any:
        """Invert :meth:`encode`. Raises CodecError."""
        if data is None and types.NoneType in _options(hint):
            return None
        hint = _present(hint)
        members = self._members(hint)
        if members is not None:
            return self._decode_member(data, members)
        if isinstance(hint, type) and issubclass(hint, (bytes, Message)):
            return _decode_binary(data, hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._decode_fields(data, hint)
        if _is_plain(data, hint):
            return float(data) if hint is float else data
        return self._decode_items(_list(data), hint)

    def _decode_items(self, data: list[Any], hint: Any) -> Any:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            key, item = arguments
            return {self.decode(k, key): self.decode(v, item) for k, v in data}
        if origin is frozenset:
            return frozenset(self.decode(item, arguments[0]) for item in data)
        if origin is tuple:
            return tuple(self.decode(item, each) for item, each in zip(data, _items(arguments, len(data)), strict=True))
        raise CodecError(f"{data!r:.80} is not of type {hint}")

    def _members(self, hint: Any) -> Mapping[str, type] | None:
        """Return the dataclasses that ``hint`` leaves open, by name; None if it is one type or one of plain values."""
        options = _options(hint)
        if any(dataclasses.is_dataclass(option) for option in options):
            return {option.__name__: option for option in options}
        return self._families.get(hint) if isinstance(hint, type) else None

    def _decode_member(self, data: Any, members: Mapping[str, type]) -> Any:
        fields = dict(_object(data))
        name = fields.pop(_KIND, None)
        if name not in members:
            raise CodecError(f"{name!r} is none of {', '.join(members)}")
        return self._decode_fields(fields, members[name])

    def _encode_fields(self, value: Any) -> dict[str, Any]:
        fields = {}
        kind: Any = type(value)
        for name, hint in _hints(kind).items():
            try:
                fields[name] = self.encode(getattr(value, name), hint)
            except CodecError as error:
                raise CodecError(f"{kind.__name__}.{name}: {error}") from None
        return fields

    def _decode_fields(self, data: Any, kind: Any) -> Any:
        hints = _hints(kind)
        if _object(data).keys() != hints.keys():
            raise CodecError(f"{kind.__name__} has other fields here: {sorted(data.keys() ^ hints.keys())}")
        fields = {}
        for name, hint in hints.items():
            try:
                fields[name] = self.decode(data[name], hint)
            except CodecError as error:
                raise CodecError(f"{kind.__name__}.{name}: {error}") from None
        return kind(**fields)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass' fields."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _items(arguments: tuple[Any, ...], length: int) -> Sequence[Any]:
    """Return the type of each item of a tuple of ``length``."""
    if arguments[1:] == (...,):
        return arguments[:1] * length
    if len(arguments) != length:
        raise CodecError(f"a tuple of {length} where one of {len(arguments)} belongs")
    return arguments


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union; nothing for any other type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()


def _present(hint: Any) -> Any:
    """Return ``X`` for ``X | None``, any other type as it is."""
    options = [option for option in _options(hint) if option is not types.NoneType]
    return options[0] if len(options) == 1 else hint


def _is_plain(value: object, hint: Any) -> bool:
    if options := _options(hint):
        return any(_is_plain(value, option) for option in options)
    if isinstance(hint, EnumTypeWrapper):
        return type(value) is int
    if hint is float:
        return type(value) in (int, float)
    return hint in (bool, int, str, types.NoneType) and type(value) is hint


def _encode_binary(value: bytes | Message) -> str:
    data = value if isinstance(value, bytes) else value.SerializeToString(deterministic=True)
    return base64.b64encode(data).decode()


def _decode_binary(data: Any, kind: type[bytes | Message]) -> bytes | Message:
    try:
        decoded = base64.b64decode(data, validate=True)
        return kind.FromString(decoded) if issubclass(kind, Message) else decoded
    except (DecodeError, TypeError, ValueError):
        raise CodecError(f"{data!r:.80} is no {kind.__name__}") from None


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise CodecError(f"{data!r:.80} is no list")
    return data


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise CodecError(f"{data!r:.80} is no object")
    return data
