"""Ranks that wait for each other, or have met in different calls: their programs have parted.

Two signs. A cycle in the wait-for graph that holds all of its ranks in their calls: they call in different orders.
Or all members of a group have entered its call number ``seq`` and their recorders name different operations
or, where sizes must agree, different sizes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors import hang
from holdfast_daemon.core.detectors.framework import Detector, Seen, Sight
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce_scatter", "_allgather_base", "all_gather", "reduce")
"""Operations, as recorders spell them after the backend's name, whose inputs have one size on all ranks."""

_SIDES_SHOWN = 4


@dataclass(frozen=True)
class MismatchedOrder(Detector):
    """Reports both sides' calls; of a group, the ranks that differ from most are the culprits."""

    name: ClassVar[str] = "mismatched_order"

    def see_turn(self, view: View) -> Sight:
        """Judge once the ranks in question have stalled past their deadlines, and no single rank is to blame."""
        if not hang.stands_still(view) or hang.roots(view):
            return Sight(self)
        differing = next(_differing_calls(view), None)
        if differing is not None:
            return Sight(self, (_differ(view, differing),))
        if view.finding.cycle and not view.outside_of_calls:
            return Sight(self, (_circle(view),))
        return Sight(self)


def _circle(view: View) -> Seen:
    cycle = view.finding.cycle
    message = f"ranks {hang.listed(cycle)} wait for each other: they call collectives in different orders"
    seen = hang.seen_hang(view, store.VERDICT_KIND_MISMATCHED_ORDER, list(cycle), message)
    for edge in view.finding.edges[:_SIDES_SHOWN]:
        group = hang.group_name(view, edge.group)
        seen.verdict.calls.append(
            f"rank {edge.waiter} waits for {edge.awaited} in {edge.op} {edge.seq} of group {group}"
        )
    return seen


def _differ(view: View, calls: Mapping[int, common.PendingCall]) -> Seen:
    kinds = Counter(_signature(call) for call in calls.values())
    usual = kinds.most_common(1)[0][0]
    odd = sorted(rank for rank, call in calls.items() if _signature(call) != usual)
    sides = {signature: sorted(r for r, call in calls.items() if _signature(call) == signature) for signature in kinds}
    first = next(iter(calls.values()))
    where = f"call {first.seq} of group {hang.group_name(view, first.group)}"
    told = [f"{_ranks(sides[signature])} in {' '.join(signature).strip()}" for signature, _ in kinds.most_common()]
    culprits = odd if 2 * len(odd) < len(calls) else sorted(calls)
    message = f"ranks have met in different calls: {where} finds {' and '.join(told[:_SIDES_SHOWN])}"
    seen = hang.seen_hang(view, store.VERDICT_KIND_MISMATCHED_ORDER, culprits, message)
    seen.verdict.group, seen.verdict.seq, seen.verdict.op = first.group, first.seq, usual[0]
    seen.verdict.calls.extend(f"{side}: {where}" for side in told[:_SIDES_SHOWN])
    return seen


def _differing_calls(view: View) -> Iterator[dict[int, common.PendingCall]]:
    """Yield the calls of a group at one seq, by rank, where they are not the same call."""
    meetings: dict[tuple[str, int], dict[int, common.PendingCall]] = {}
    for number, rank in view.ranks.items():
        for call in rank.pending:
            meetings.setdefault((call.group, call.seq), {})[number] = call
    for _, calls in sorted(meetings.items()):
        if len({_signature(call) for call in calls.values()}) > 1:
            yield calls


def _signature(call: common.PendingCall) -> tuple[str, str]:
    """Return what must be equal on all ranks: the operation, and its sizes where they must."""
    operation = call.op.rpartition(":")[2]
    return call.op, call.sizes if operation in _EQUAL_SIZES else ""


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {hang.listed(numbers)}"
