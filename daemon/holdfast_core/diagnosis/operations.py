"""What names, sizes and types of calls say: what an operation is, and whether all members have entered the same."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from holdfast_core.world import GroupId, group_id
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_SHAPE = re.compile(r"\[([\d, ]*)\]")
_DTYPE = re.compile(r"\w+")
_ITEM_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of an element, by the name of its type in recorders."""

_EQUAL_INPUTS = frozenset(
    (
        "all_reduce",
        "allreduce",
        "broadcast",
        "reduce",
        "all_gather",
        "_all_gather_base",
        "_allgather_base",
        "reduce_scatter",
        "_reduce_scatter_base",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_reduce_barrier",
        # The fast paths of coalesced calls: the sizes of all their tensors are in one entry.
        "allreduce_coalesced",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor_coalesced",
    )
)
_TEXTS_KEPT = 4096
"""Texts whose reading is remembered: the recorders of a job name the same few calls hundreds of thousands of times."""
_END_TOGETHER = _EQUAL_INPUTS - {"broadcast", "reduce"} | {"all_to_all", "barrier"}


@lru_cache(_TEXTS_KEPT)
def operation(op: str) -> str:
    """Return an operation without its backend."""
    return op.rpartition(":")[2]


@lru_cache(_TEXTS_KEPT)
def has_equal_inputs(op: str) -> bool:
    """Return whether the inputs of an operation have equal sizes and types on all ranks."""
    return operation(op) in _EQUAL_INPUTS


@lru_cache(_TEXTS_KEPT)
def ends_together(op: str) -> bool:
    """Return whether an operation ends on no rank before all have taken part."""
    return operation(op) in _END_TOGETHER


def has_root(op: str) -> bool:
    """Return whether one rank gives or takes all in such a call: some ranks need nothing of the others."""
    name = operation(op)
    return name.startswith(("broadcast", "scatter", "gather", "reduce")) and not name.startswith("reduce_scatter")


@lru_cache(_TEXTS_KEPT)
def input_elements(sizes: str) -> int:
    """Return the elements of all inputs of a call. Ranks may give the same elements different shapes."""
    return sum(_elements(sizes))


@lru_cache(_TEXTS_KEPT)
def input_types(dtypes: str) -> str:
    """Return the types of the inputs of a call, each once."""
    return " ".join(sorted(set(_DTYPE.findall(dtypes))))


@lru_cache(_TEXTS_KEPT)
def agreed(op: str, sizes: str, dtypes: str) -> str:
    """Return what all ranks must agree in that take part in a call, in words."""
    op = operation(op)
    if not has_equal_inputs(op) or not sizes:
        return op
    types = input_types(dtypes)
    return f"{op} of {input_elements(sizes)} elements{f' of type {types}' if types else ''}"


@lru_cache(_TEXTS_KEPT)
def input_bytes(sizes: str, dtypes: str) -> int:
    """Return the bytes of all inputs of a call. 0: not known, or it has none."""
    counts, items = _elements(sizes), _items(dtypes)
    if len(counts) != len(items) or 0 in items:
        return 0
    return sum(count * item for count, item in zip(counts, items, strict=True))


def item_bytes(dtypes: str) -> int:
    """Return the bytes of an element of the first input of a call. 0: not known, or it has none."""
    return next(iter(_items(dtypes)), 0)


def _items(dtypes: str) -> list[int]:
    return [_ITEM_BYTES.get(name, 0) for name in _DTYPE.findall(dtypes)]


def _elements(sizes: str) -> list[int]:
    return [prod(int(size) for size in shape.replace(",", " ").split()) for shape in _SHAPE.findall(sizes)]


_UNORDERED = ("send", "recv", "coalesced")
"""First words of the operations that have no number of their own in a group's sequence."""

Signature = tuple[str, str, str]
"""Operation, sizes, data types; the last two are empty where ranks may differ in them."""


@dataclass(frozen=True)
class MismatchedCall:
    """Ranks in different collectives at one sequence number of a group."""

    group: str
    seq: int
    sides: tuple[tuple[Signature, tuple[int, ...]], ...]
    """Each call that was made there and the ranks that made it, the most frequent first."""


def mismatched_calls(ranks: Mapping[int, store.RankState]) -> Iterator[MismatchedCall]:
    """Yield the mismatched calls of all groups, by group and seq."""
    made: dict[tuple[GroupId, int], dict[str, tuple[Signature, list[int]]]] = {}
    for number in sorted(ranks):
        rank = ranks[number]
        if not rank.pending:
            continue
        groups = {group.group: group_id(group) for group in rank.progress.groups if group.member_runs}
        for call in rank.pending:
            if call.group in groups and not operation(call.op).startswith(_UNORDERED):
                sides = made.setdefault((groups[call.group], call.seq), {})
                sides.setdefault(agreed(call.op, call.sizes, call.dtypes), (_signature(call), []))[1].append(number)
    for ((name, _), seq), sides in sorted(made.items(), key=lambda item: item[0]):
        if len(sides) > 1:
            ordered = sorted(sides.values(), key=lambda side: -len(side[1]))
            yield MismatchedCall(name, seq, tuple((signature, tuple(numbers)) for signature, numbers in ordered))


def _signature(call: common.PendingCall) -> Signature:
    return (call.op, call.sizes, call.dtypes) if has_equal_inputs(call.op) else (call.op, "", "")
