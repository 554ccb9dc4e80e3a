"""The side of ranks that gloo has aborted in a call in which the others have named different sizes or data types.

An aborted rank cannot name its call. But its last words say how many bytes it expected of a neighbour, and how many it
got. Gloo sends a call in pieces, and all sizes divide in the same way. So where two sides differ in their bytes as
these two numbers do, the rank has called like the smaller side.
"""

from itertools import permutations
from math import isclose

from holdfast_daemon.core.detectors.deaths.peer_loss import bytes_expected_and_got
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.waits.named_calls import MismatchedCall, Signature
from holdfast_daemon.core.waits.operations import input_bytes

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
    sizes = {called: input_bytes(called[1], called[2]) for called, _ in call.sides}
    return {
        own
        for own, other in permutations(sizes, 2)
        if own[0] == other[0]
        and sizes[own] < sizes[other]
        and isclose(expected_bytes * sizes[other], got_bytes * sizes[own], rel_tol=_LARGEST_DIFFERENCE)
    }
