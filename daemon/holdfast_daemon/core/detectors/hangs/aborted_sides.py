"""The side of ranks that gloo has aborted in a call in which the others have named different sizes or data types.

An aborted rank cannot name its call. But its last words say how many bytes it expected of a neighbour, and how many it
got. Gloo sends a call in pieces, and all sizes divide in the same way. So where two sides differ in their bytes as
these two numbers do, the rank has called like the smaller side.
"""

import re
from itertools import permutations
from math import isclose, prod

from holdfast_daemon.core.detectors.deaths.peer_loss import bytes_expected_and_got
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.waits.named_calls import MismatchedCall, Signature

_SHAPE = re.compile(r"\[([\d, ]*)\]")
_DTYPE = re.compile(r"'(\w+)'")
_ITEM_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of an element, by the name of its type in recorders."""

_LARGEST_DIFFERENCE = 0.05
"""Pieces are rounded up to whole elements, so that the shares of two sizes differ a little."""


def sides_of_aborted(view: View, call: MismatchedCall) -> dict[int, Signature]:
    """Return the call that each aborted rank of the group has made. A rank whose call is not known is left out."""
    named = {rank for _, ranks in call.sides for rank in ranks}
    groups = view.ranks[min(named)].progress.groups
    members = next((group.members for group in groups if group.group == call.group), ())
    found = {}
    for number in sorted(set(members) - named):
        rank = view.ranks.get(number)
        aborted = bytes_expected_and_got(rank.exit.last_words) if rank is not None and rank.HasField("exit") else None
        signatures = _likely_calls(call, *aborted) if aborted is not None else set()
        if len(signatures) == 1:
            found[number] = signatures.pop()
    return found


def _likely_calls(call: MismatchedCall, expected_bytes: int, got_bytes: int) -> set[Signature]:
    """Return the sides that differ from another one as what was expected differs from what came."""
    sizes = {called: _bytes(called) for called, _ in call.sides}
    return {
        own
        for own, other in permutations(sizes, 2)
        if own[0] == other[0]
        and sizes[own] < sizes[other]
        and isclose(expected_bytes * sizes[other], got_bytes * sizes[own], rel_tol=_LARGEST_DIFFERENCE)
    }


def _bytes(called: Signature) -> int:
    """Return the bytes of a call's inputs; 0: not known."""
    _, sizes, dtypes = called
    shapes = [[int(size) for size in shape.replace(",", " ").split()] for shape in _SHAPE.findall(sizes)]
    items = [_ITEM_BYTES.get(name, 0) for name in _DTYPE.findall(dtypes)]
    if len(shapes) != len(items) or 0 in items:
        return 0
    return sum(prod(shape) * item for shape, item in zip(shapes, items, strict=True))
