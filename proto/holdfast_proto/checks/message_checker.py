"""Checks a message by its descriptor: each field by its type, by what its name says, and by its limits in the .proto.

So a field that is new in a .proto is checked without a line of code. What the name of a field says:

* ``..._unix_s`` is a time, ``..._s`` a duration. Any other floating-point number is finite.
* ``rank`` and the names in ``_RANK`` are numbers of ranks, and so are the lists in ``_RANKS``.
* ``incident`` and ``..._incident`` are ids of incidents, ``pid`` is that of a process, ``world_size`` a size.
* A signed number of 64 bits is a step, or a sequence number that may be -1. An unsigned one is a count.

A list of ranks, or of messages about ranks, has at most one item for each rank of the largest world. Other lists, maps
and texts have limits that are far above real lengths. ``whole_rules.py`` has what no single field shows.

All nodes send all the time. So the rules of each type of message are found out once, and numbers are compared together,
without a call for each. A field that is not set is 0 or empty. The range of a number has 0, and other rules are for
what is set. ``required`` fields must be.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, le
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from holdfast_proto.checks.value_rules import (
    ANY_FINITE,
    COUNT,
    COUNT_OR_NONE,
    KINDS,
    MOST_ITEMS,
    PID,
    SECONDS,
    TEXT,
    UNIX_S,
    Length,
    OneOf,
    Range,
    RefusedError,
    Rule,
    check_id,
    check_length,
    check_line,
)
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.v1 import limits_pb2

_RANK = frozenset({"rank", "waiter", "awaited", "peer", "sender", "receiver"})
_RANKS = frozenset({"ranks", "culprits", "waiters", "suspects", "members"})
_REPORTS_PER_RANK = 16
"""Of one number of one step on one node. A rank reports each once; sums over nodes must fit into 32 bits."""


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """What is checked of the messages of one type. Fields that may hold anything are absent."""

    numbers: Callable[[Any], Sequence[float]]
    """Returns the values of all numbers."""
    least: Sequence[float]
    most: Sequence[float]
    texts: Callable[[Any], Sequence[str]]
    """Returns all texts of which only the length is limited."""
    longest: Sequence[int]
    others: Sequence[tuple[str, Rule]]
    """Other texts, lists and maps."""
    parts: Sequence[tuple[str, Rule]]
    """Messages in the message."""
    required: Sequence[str]
    whole: Callable[[Any], None] | None
    rules: Mapping[str, Rule]
    """The rules of all fields by name."""
    essential: Collection[str]
    is_lenient: bool


@dataclass(frozen=True)
class MessageChecker:
    """Checks messages of a run."""

    world_size: int
    """Ranks of the run."""
    wholes: Mapping[str, Callable[[Any], None]]
    """Checks of what no single field shows, by the name of a message. All fields are good by then."""
    _plans: dict[object, CheckPlan] = field(default_factory=dict)

    def check(self, message: Message) -> None:
        """Check a message and all messages in it. Raises RefusedError, whose text begins with the path of a field."""
        self._check(message, self.plan_of(message.DESCRIPTOR))  # type: ignore[arg-type]

    def check_part(self, message: Message, name: str) -> None:
        """Check a message that is known as ``name``: the text of a RefusedError begins with it."""
        self._check_parts((message,), name, most=1)

    def _check_parts(self, messages: Sequence[Message], name: str, *, most: int) -> None:
        check_length(messages, name, most)
        plan = self.plan_of(messages[0].DESCRIPTOR)  # type: ignore[arg-type]
        try:
            for message in messages:
                self._check(message, plan)
        except RefusedError as error:
            raise RefusedError(f"{name}.{error}") from None

    def _check(self, message: Message, plan: CheckPlan) -> None:
        values = plan.numbers(message)
        if not (
            all(map(le, plan.least, values))
            and all(map(le, values, plan.most))
            and all(map(le, map(len, plan.texts(message)), plan.longest))
        ):
            _name_bad_value(message, plan)
        for name, check in plan.others:
            if value := getattr(message, name):
                check(value, name)
        for name, check in plan.parts:
            if message.HasField(name):
                check(getattr(message, name), name)
        for name in plan.required:
            if not getattr(message, name):
                raise RefusedError(f"{name} is missing")
        if plan.whole is not None:
            plan.whole(message)

    def plan_of(self, descriptor: Descriptor) -> CheckPlan:
        """Return what is checked of the messages of one type."""
        if descriptor not in self._plans:
            self._plans[descriptor] = self._new_plan(descriptor)
        return self._plans[descriptor]

    def _new_plan(self, descriptor: Descriptor) -> CheckPlan:
        rules = {one.name: rule for one in descriptor.fields if (rule := self._rule(one)) is not None}
        ranges = {name: rule for name, rule in rules.items() if isinstance(rule, Range)}
        lengths = {name: rule.most for name, rule in rules.items() if isinstance(rule, Length)}
        singles = {one.name for one in descriptor.fields if one.message_type is not None and not one.is_repeated}
        apart = {*ranges, *lengths, *singles}
        marks = {one.name: limits_of(one) for one in descriptor.fields}
        return CheckPlan(
            numbers=_getter_of([*ranges]),
            least=[rule.least for rule in ranges.values()],
            most=[rule.most for rule in ranges.values()],
            texts=_getter_of([*lengths]),
            longest=[*lengths.values()],
            others=[(name, rule) for name, rule in rules.items() if name not in apart],
            parts=[(name, rule) for name, rule in rules.items() if name in singles],
            required=[name for name, mark in marks.items() if mark.required],
            whole=self.wholes.get(descriptor.name),
            rules=rules,
            essential={name for name, mark in marks.items() if mark.essential},
            is_lenient=descriptor.GetOptions().Extensions[limits_pb2.lenient],  # type: ignore[index]
        )

    def _rule(self, one: FieldDescriptor) -> Rule | None:
        """Return the rule of a field: of all its items, if it is repeated."""
        limits = limits_of(one)
        if not one.is_repeated:
            return self._rule_of_value(one, one.name, limits.kind, limits)
        most = length_of(one)
        if one.message_type is None:
            rule = self._rule_of_value(one, one.name, limits.kind, limits)
            return _of_list(rule, most) if rule is not None or limits.kind != limits_pb2.KIND_ANYTHING else None
        if not one.message_type.GetOptions().map_entry:
            return None if limits.kind == limits_pb2.KIND_ANYTHING else partial(self._check_parts, most=most)
        keys, values = one.message_type.fields
        of_keys = self._rule_of_value(keys, "key", limits.keys, limits_pb2.Limits())
        return _of_map(of_keys, self._rule_of_value(values, one.name, limits.kind, limits), most)

    def _rule_of_value(
        self, one: FieldDescriptor, name: str, kind: "limits_pb2.Kind", limits: limits_pb2.Limits
    ) -> Rule | None:
        """Return the rule of one value. ``name``: what shows its unit."""
        if limits.words:
            return OneOf(frozenset(limits.words))
        if limits.length and not one.is_repeated and one.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            is_line = kind == limits_pb2.KIND_LINE
            return partial(check_line, most=limits.length) if is_line else Length(limits.length)
        if kind == limits_pb2.KIND_ANY_RANK:
            return Range(0, MOST_RANKS - 1)
        if kind == limits_pb2.KIND_REPORTS:
            return Range(0, _REPORTS_PER_RANK * self.world_size)
        rule = KINDS[kind] if kind else self._rule_by_type(one, name)
        if not isinstance(rule, Range) and not (limits.HasField("least") or limits.HasField("most")):
            return rule
        usual = rule if isinstance(rule, Range) else ANY_FINITE
        return Range(
            limits.least if limits.HasField("least") else usual.least,
            limits.most if limits.HasField("most") else usual.most,
        )

    def _rule_by_type(self, one: FieldDescriptor, name: str) -> Rule | None:
        rule: Rule | None = None  # of a bool, and of a number of 32 bits: no count can be too large
        match one.cpp_type:
            case FieldDescriptor.CPPTYPE_MESSAGE:
                rule = self.check_part
            case FieldDescriptor.CPPTYPE_ENUM if one.enum_type is not None:
                rule = _rule_of_enum(frozenset(one.enum_type.values_by_number))
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                rule = _rule_of_float(name)
            case FieldDescriptor.CPPTYPE_STRING:  # of bytes, too
                rule = check_id if name == "incident" or name.endswith("_incident") else TEXT
            case FieldDescriptor.CPPTYPE_INT64:
                rule = COUNT_OR_NONE
            case FieldDescriptor.CPPTYPE_UINT64:
                rule = COUNT
            case FieldDescriptor.CPPTYPE_UINT32 if name in (_RANKS if one.is_repeated else _RANK):
                rule = Range(0, self.world_size - 1)
            case FieldDescriptor.CPPTYPE_UINT32 if name == "pid":
                rule = PID
            case FieldDescriptor.CPPTYPE_UINT32 if name.endswith("world_size"):
                rule = Range(0, MOST_RANKS)
        return rule


def limits_of(one: FieldDescriptor) -> limits_pb2.Limits:
    """Return what a .proto says of a field's values."""
    limits: limits_pb2.Limits = one.GetOptions().Extensions[limits_pb2.limits]  # type: ignore[index]
    return limits


def length_of(one: FieldDescriptor) -> int:
    """Return the largest number of items of a list or map."""
    return limits_of(one).length or (MOST_RANKS if _is_by_rank(one) else MOST_ITEMS)


def _getter_of(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda message: (get(message),)


def _name_bad_value(message: Message, plan: CheckPlan) -> None:
    for name, rule in plan.rules.items():
        if isinstance(rule, Range | Length):
            rule(getattr(message, name), name)


def _rule_of_enum(numbers: Collection[int]) -> Rule:
    """Return the rule of an enum: proto3 carries numbers that this version does not know."""
    most = max(numbers)
    return Range(0, most) if len(numbers) == most + 1 else OneOf(frozenset(numbers))


def _rule_of_float(name: str) -> Range:
    if name.endswith("unix_s"):
        return UNIX_S
    return SECONDS if name.endswith("_s") and not name.endswith("per_s") else ANY_FINITE


def _is_by_rank(one: FieldDescriptor) -> bool:
    """Return whether a list holds ranks, or messages about ranks."""
    if one.message_type is None:
        return one.name in _RANKS
    return any(part.name in (_RANKS if part.is_repeated else _RANK) for part in one.message_type.fields)


def _of_list(rule: Rule | None, most: int) -> Rule:
    def check(values: Sequence[Any], name: str) -> None:
        check_length(values, name, most)
        if rule is None or (isinstance(rule, Range | Length | OneOf) and rule.are_good(values)):
            return
        for value in values:
            rule(value, name)

    return check


def _of_map(of_keys: Rule | None, of_values: Rule | None, most: int) -> Rule:
    of_all_keys, of_all_values = _of_list(of_keys, most), _of_list(of_values, most)

    def check(values: Mapping[Any, Any], name: str) -> None:
        of_all_keys(list(values), name)
        of_all_values(list(values.values()), name)

    return check
