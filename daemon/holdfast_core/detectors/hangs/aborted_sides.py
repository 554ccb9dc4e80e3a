"""The side of ranks that gloo has aborted in a call in which the others have named different sizes or data types.

An aborted rank cannot name its call. But its last words say how many bytes it expected of a neighbour, and how many it
got. Gloo sends a call in pieces. So where the pieces of two sides differ in their bytes as these two numbers do, the
rank has called like the smaller side. Most calls divide all sizes in the same way. An all-reduce does not: a piece has
at most 1 MiB, and each rank has the same number of them, two at least (``ring`` in gloo's ``allreduce.cc``).
"""

from itertools import permutations
from math import ceil, isclose

from holdfast_core.detectors.deaths.peer_loss import bytes_expected_and_got
from holdfast_core.detectors.view import View
from holdfast_core.diagnosis.operations import MismatchedCall, Signature, input_bytes, item_bytes, operation
from holdfast_proto.member_runs import members_of

_ALL_REDUCE = ("all_reduce", "allreduce")
_PIECE_BYTES = 1 << 20
_LARGEST_DIFFERENCE = 0.05
"""Pieces are rounded up to whole elements, so that the shares of two sizes differ a little."""


def sides_of_aborted(view: View, call: MismatchedCall) -> dict[int, Signature]:
    """Return the call that each aborted rank of the group has made. A rank whose call is not known is left out."""
    named = {rank for _, ranks in call.sides for rank in ranks}
    groups = view.ranks[min(named)].progress.groups
    members = members_of(next((group.member_runs for group in groups if group.group == call.group), ()))
    found = {}
    for number in sorted(set(members) - named):
        rank = view.ranks.get(number)
        aborted = bytes_expected_and_got(rank.exit.last_words) if rank is not None and rank.HasField("exit") else None
        signatures = _likely_calls(call, len(members), *aborted) if aborted is not None else set()
        if len(signatures) == 1:
            found[number] = signatures.pop()
    return found


def _likely_calls(call: MismatchedCall, ranks: int, expected_bytes: int, got_bytes: int) -> set[Signature]:
    """Return the sides that differ from another one as what was expected differs from what came."""
    sizes = {called: _piece_bytes(called, ranks) for called, _ in call.sides}
    return {
        own
        for own, other in permutations(sizes, 2)
        if own[0] == other[0]
        and sizes[own] < sizes[other]
        and isclose(expected_bytes * sizes[other], got_bytes * sizes[own], rel_tol=_LARGEST_DIFFERENCE)
    }


def _piece_bytes(called: Signature, ranks: int) -> float:
    """Return the bytes of a piece of a call of ``ranks`` ranks, or of all of them. 0: not known."""
    op, sizes, dtypes = called
    total, item = input_bytes(sizes, dtypes), item_bytes(dtypes)
    if operation(op) not in _ALL_REDUCE or not item:
        return total
    pieces = max(ceil(total / (_PIECE_BYTES // item * item)), 2 * ranks)
    return total / (ceil(pieces / ranks) * ranks)
