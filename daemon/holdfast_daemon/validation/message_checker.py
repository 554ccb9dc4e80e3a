"""Checks a message by its descriptor: each field by its type and by what its name says.

So a field that is new in a .proto is checked without a line of code. ``message_rules.py`` has what types and names do
not say. What the name of a field says:

* ``..._unix_s`` is a time, ``..._s`` a duration. Any other floating-point number is finite.
* ``rank`` and the names in ``_RANK`` are numbers of ranks, and so are the lists in ``_RANKS``.
* ``incident`` and ``..._incident`` are ids of incidents, and ``pid`` is that of a process.
* A signed number of 64 bits is a step, or a sequence number that may be -1. An unsigned one is a count.

A list of ranks, or of messages about ranks, has at most one item for each rank of the largest world. Other lists, maps
and texts have limits that are far above real lengths.

A step summary comes from every node for every step. So the rules of each type of message are found out once, and
numbers are compared here, without a call. A field that is not set is 0 or empty. The range of a number has 0, and other
rules are for what is set. ``never_empty`` has the fields that must be.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from holdfast_daemon.validation.rules import (
    LARGEST_PID,
    MOST_ITEMS,
    RefusedError,
    check_id,
    check_length,
    check_text,
)
from holdfast_proto.limits import LARGEST_COUNT, LATEST_UNIX_S, LONGEST_S, MOST_RANKS

Rule = Callable[[Any, str], None]
"""Checks a value of a field. Raises RefusedError, whose text begins with the name of the field."""

_RANK = frozenset({"rank", "waiter", "awaited", "peer", "sender", "receiver"})
_RANKS = frozenset({"ranks", "culprits", "waiters", "suspects", "members"})


@dataclass(frozen=True)
class Range:
    """The rule of a number: it is from ``least`` to ``most``, both included. NaN never is."""

    least: float
    most: float

    def __call__(self, value: float, name: str) -> None:
        """Check a number."""
        if not self.least <= value <= self.most:
            raise RefusedError(f"{name} is {value}: {self.least:.16g} to {self.most:.16g} is expected")

    def check_all(self, values: Iterable[float], name: str) -> None:
        """Check numbers, without a call for each: there may be a thousand ranks."""
        least, most = self.least, self.most
        for bad in [value for value in values if not least <= value <= most]:
            self(bad, name)


ANY_FINITE = Range(-sys.float_info.max, sys.float_info.max)
_COUNT = Range(0, LARGEST_COUNT)
_COUNT_OR_NONE = Range(-1, LARGEST_COUNT)
_SECONDS = Range(0.0, LONGEST_S)
_UNIX_S = Range(0.0, LATEST_UNIX_S)
_PID = Range(0, LARGEST_PID)


@dataclass(frozen=True)
class _Plan:
    """What is checked of the messages of one type. Fields that may hold anything are absent."""

    numbers: Sequence[tuple[str, float, float, Range]]
    """Name, smallest value, largest value, and the rule that says so."""
    others: Sequence[tuple[str, Rule]]
    """Texts, enums, lists and maps."""
    parts: Sequence[tuple[str, Rule]]
    """Messages in the message."""
    never_empty: Sequence[str]
    whole: Callable[[Any], None] | None


@dataclass(frozen=True)
class MessageChecker:
    """Checks messages of a run. The tables are by ``Message.field``, and ``wholes`` by ``Message``."""

    world_size: int
    """Ranks of the run."""
    rules: Mapping[str, Rule | None]
    """Rules of what types and names do not say. Of a list: the rule of an item. Of a map: those of
    ``Message.field.key`` and ``Message.field.value``. None: the field may hold anything."""
    lengths: Mapping[str, int]
    """Limits of the lengths of lists."""
    never_empty: Collection[str]
    """Fields that must be set, and not to 0 or an empty text."""
    wholes: Mapping[str, Callable[[Any], None]]
    """Checks of what no single field shows. All fields are good by then."""
    _plans: dict[object, _Plan] = field(default_factory=dict)

    def check(self, message: Message) -> None:
        """Check a message and all messages in it. Raises RefusedError, whose text begins with the path of a field."""
        self._check(message, self._plan_of(message))

    def check_part(self, message: Message, name: str) -> None:
        """Check a message that is known as ``name``: the text of a RefusedError begins with it."""
        self._check_parts((message,), name, most=1)

    def _check_parts(self, messages: Sequence[Message], name: str, *, most: int) -> None:
        check_length(messages, name, most)
        plan = self._plan_of(messages[0])
        try:
            for message in messages:
                self._check(message, plan)
        except RefusedError as error:
            raise RefusedError(f"{name}.{error}") from None

    def _check(self, message: Message, plan: _Plan) -> None:
        for name, least, most, rule in plan.numbers:
            if not least <= getattr(message, name) <= most:
                rule(getattr(message, name), name)
        for name, check in plan.others:
            if value := getattr(message, name):
                check(value, name)
        for name, check in plan.parts:
            if message.HasField(name):
                check(getattr(message, name), name)
        for name in plan.never_empty:
            if not getattr(message, name):
                raise RefusedError(f"{name} is missing")
        if plan.whole is not None:
            plan.whole(message)

    def _plan_of(self, message: Message) -> _Plan:
        descriptor = message.DESCRIPTOR
        if descriptor in self._plans:
            return self._plans[descriptor]
        name = descriptor.name
        rules = [(one, rule) for one in descriptor.fields if (rule := self._rule(one, f"{name}.{one.name}"))]  # type: ignore[arg-type]
        parts = [(one.name, rule) for one, rule in rules if one.message_type and not one.is_repeated]
        numbers = [(one.name, rule.least, rule.most, rule) for one, rule in rules if isinstance(rule, Range)]
        others = [(one.name, rule) for one, rule in rules if not isinstance(rule, Range)]
        self._plans[descriptor] = _Plan(
            numbers=numbers,
            others=[other for other in others if other not in parts],
            parts=parts,
            never_empty=[one.name for one in descriptor.fields if f"{name}.{one.name}" in self.never_empty],
            whole=self.wholes.get(name),
        )
        return self._plans[descriptor]

    def _rule(self, one: FieldDescriptor, path: str) -> Rule | None:
        """Return the rule of a field: of all its items, if it is repeated."""
        if not one.is_repeated:
            return self._rule_of_value(one, path, one.name)
        most = self.lengths.get(path, MOST_RANKS if _is_by_rank(one) else MOST_ITEMS)
        if one.message_type is None:
            return _of_list(self._rule_of_value(one, path, one.name), most)
        if not one.message_type.GetOptions().map_entry:
            return partial(self._check_parts, most=most)
        keys, values = one.message_type.fields
        of_keys = self._rule_of_value(keys, f"{path}.key", "key")
        return _of_map(of_keys, self._rule_of_value(values, f"{path}.value", one.name), most)

    def _rule_of_value(self, one: FieldDescriptor, path: str, name: str) -> Rule | None:
        """Return the rule of one value. ``name``: what shows its unit."""
        if path in self.rules:
            return self.rules[path]
        rule: Rule | None = None  # of a bool, and of a number of 32 bits: no count can be too large
        match one.cpp_type:
            case FieldDescriptor.CPPTYPE_MESSAGE:
                rule = self.check_part
            case FieldDescriptor.CPPTYPE_ENUM if one.enum_type is not None:
                rule = one_of(frozenset(one.enum_type.values_by_number))
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                rule = _rule_of_float(name)
            case FieldDescriptor.CPPTYPE_STRING:  # of bytes, too
                rule = check_id if name == "incident" or name.endswith("_incident") else check_text
            case FieldDescriptor.CPPTYPE_INT64:
                rule = _COUNT_OR_NONE
            case FieldDescriptor.CPPTYPE_UINT64:
                rule = _COUNT
            case FieldDescriptor.CPPTYPE_UINT32 if name in (_RANKS if one.is_repeated else _RANK):
                rule = Range(0, self.world_size - 1)
            case FieldDescriptor.CPPTYPE_UINT32 if name == "pid":
                rule = _PID
        return rule


def one_of(known: Collection[object]) -> Rule:
    """Return the rule of a value that is among those ``known``: proto3 carries numbers of enums that are not."""

    def check(value: object, name: str) -> None:
        if value not in known:
            raise RefusedError(f"{name} has the unknown value {repr(value)[:80]}")

    return check


def _rule_of_float(name: str) -> Range:
    if name.endswith("unix_s"):
        return _UNIX_S
    return _SECONDS if name.endswith("_s") and not name.endswith("per_s") else ANY_FINITE


def _is_by_rank(one: FieldDescriptor) -> bool:
    """Return whether a list holds ranks, or messages about ranks."""
    if one.message_type is None:
        return one.name in _RANKS
    return any(part.name in (_RANKS if part.is_repeated else _RANK) for part in one.message_type.fields)


def _of_list(rule: Rule | None, most: int) -> Rule:
    def check(values: Collection[Any], name: str) -> None:
        check_length(values, name, most)
        if isinstance(rule, Range):
            rule.check_all(values, name)
        elif rule is not None:
            for value in values:
                rule(value, name)

    return check


def _of_map(of_keys: Rule | None, of_values: Rule | None, most: int) -> Rule:
    def check(values: Mapping[Any, Any], name: str) -> None:
        check_length(values, name, most)
        for key, value in values.items():
            if of_keys is not None:
                of_keys(key, name)
            if of_values is not None:
                of_values(value, name)

    return check
