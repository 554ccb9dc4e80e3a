"""Checks the detail of a verdict that the store keeps: every field by its type, and what its text is rendered from."""

import math
from collections.abc import Iterable

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from holdfast_core.texts.render import is_complete
from holdfast_daemon.validation.rules import RefusedError, check_known, check_length, check_text
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.v1 import store_pb2 as store


def check_detail(verdict: store.Verdict) -> None:
    """Check the detail, if there is one."""
    name = verdict.WhichOneof("detail") or "device_call"
    for each in {name, "device_call"}:
        _check_message(getattr(verdict, each), f"verdict.{each}")
    if not is_complete(verdict):
        raise RefusedError(f"verdict.{name} lacks what it is about")


def _check_message(message: Message, where: str) -> None:
    for field, value in message.ListFields():
        name = f"{where}.{field.name}"
        values: Iterable[object] = value if field.is_repeated else (value,)
        if field.is_repeated:
            check_length(value, name, MOST_RANKS)
        for each in values:
            _check_value(field, each, name)


def _check_value(field: FieldDescriptor, value: object, name: str) -> None:
    match value:
        case Message():
            _check_message(value, name)
        case str():
            check_text(value, name)
        case float():
            if not math.isfinite(value):
                raise RefusedError(f"{name} is {value}")
        case int() if field.enum_type is not None:
            check_known(value, field.enum_type.values_by_number, name)
