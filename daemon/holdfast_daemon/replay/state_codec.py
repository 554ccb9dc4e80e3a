"""Frozen dataclasses as JSON and back, guided by their type hints: cattrs, and what JSON lacks.

Numbers, strings and None stay as they are. Bytes and protobuf messages become base64. A mapping becomes a list of
pairs, because a key in JSON cannot be a number. A frozenset becomes a sorted list. Where a type hint is a union of
dataclasses, or a family of which only the members are known, an object carries the name of the one that it holds.
A field that an older version did not write takes its default.
"""

import base64
import dataclasses
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

from cattrs import BaseValidationError, Converter, transform_error
from cattrs.cols import is_frozenset, is_mapping
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
        self._converter = converter = Converter(forbid_extra_keys=True)
        for kind in (bool, int, str):
            converter.register_structure_hook(kind, _exactly(kind))
        converter.register_structure_hook(float, lambda data, _: float(_exactly(int, float)(data)))
        converter.register_structure_hook_func(lambda hint: isinstance(hint, EnumTypeWrapper), _exactly(int))
        converter.register_unstructure_hook(bytes, _encode_binary)
        converter.register_unstructure_hook(Message, _encode_binary)
        converter.register_structure_hook(bytes, _decode_binary)
        converter.register_structure_hook(Message, _decode_binary)
        converter.register_unstructure_hook_factory(is_mapping, self._pairs_of)
        converter.register_structure_hook_factory(is_mapping, self._mapping_of)
        converter.register_unstructure_hook_factory(is_frozenset, self._sorted)
        converter.register_unstructure_hook_factory(lambda hint: bool(self._members(hint)), self._named)
        converter.register_structure_hook_factory(lambda hint: bool(self._members(hint)), self._by_name)

    def encode(self, value: object, hint: Any) -> Any:
        """Return ``value``, which is of type ``hint``, as what json.dumps takes. Raises CodecError."""
        try:
            return self._converter.unstructure(value, hint)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CodecError(f"{type(value).__name__} holds what is not of its declared type: {error!r}") from None

    def decode(self, data: Any, hint: Any) -> Any:
        """Invert :meth:`encode`. Raises CodecError."""
        try:
            return self._converter.structure(data, hint)
        except (BaseValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
            name = getattr(hint, "__name__", str(hint))  # a union has none
            raise CodecError("; ".join(transform_error(error, name, _reason))) from None

    def _pairs_of(self, hint: Any) -> Callable[[Mapping[Any, Any]], list[Any]]:
        key, item = map(self._converter.get_unstructure_hook, get_args(hint))
        return lambda value: [[key(k), item(v)] for k, v in value.items()]

    def _mapping_of(self, hint: Any) -> Callable[[Any, Any], Mapping[Any, Any]]:
        pairs: Any = types.GenericAlias(list, (types.GenericAlias(tuple, get_args(hint)),))
        return lambda data, _: dict(self._converter.structure(data, pairs))

    def _sorted(self, hint: Any) -> Callable[[frozenset[Any]], list[Any]]:
        (item,) = map(self._converter.get_unstructure_hook, get_args(hint))
        return lambda value: sorted(map(item, value), key=json.dumps)

    def _members(self, hint: Any) -> Mapping[str, type]:
        """Return the dataclasses that ``hint`` leaves open, by name; nothing if it is one type."""
        if get_origin(hint) is types.UnionType and all(map(dataclasses.is_dataclass, get_args(hint))):
            return {kind.__name__: kind for kind in get_args(hint)}
        return self._families.get(hint, {}) if isinstance(hint, type) else {}

    def _named(self, hint: Any) -> Callable[[Any], dict[str, Any]]:
        names = {kind: name for name, kind in self._members(hint).items()}
        return lambda value: {_KIND: names[type(value)], **self._converter.unstructure(value)}

    def _by_name(self, hint: Any) -> Callable[[Any, Any], Any]:
        members = self._members(hint)

        def structure(data: Any, _: Any) -> Any:
            fields = dict(data)
            name = fields.pop(_KIND, None)
            if name not in members:
                raise ValueError(f"{name!r} is none of {', '.join(members)}")
            return self._converter.structure(fields, members[name])

        return structure


def _exactly(*kinds: type) -> Callable[..., Any]:
    def check(data: Any, _: Any = None) -> Any:
        if type(data) not in kinds:
            raise TypeError(f"{data!r:.80} is no {kinds[-1].__name__}")
        return data

    return check


def _encode_binary(value: bytes | Message) -> str:
    data = value if isinstance(value, bytes) else value.SerializeToString(deterministic=True)
    return base64.b64encode(data).decode()


def _decode_binary(data: Any, kind: type[bytes | Message]) -> bytes | Message:
    try:
        decoded = base64.b64decode(data, validate=True)
        return kind.FromString(decoded) if issubclass(kind, Message) else decoded
    except (DecodeError, TypeError, ValueError):
        raise ValueError(f"{data!r:.80} is no {kind.__name__}") from None


def _reason(error: BaseException, _: Any) -> str:
    return str(error) or type(error).__name__
