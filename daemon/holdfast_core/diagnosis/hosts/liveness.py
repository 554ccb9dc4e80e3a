"""The liveness of each rank: whether its reported progress is up to date, and if not, why."""

from collections.abc import Mapping
from enum import IntEnum
from statistics import median_low

from holdfast_proto.v1 import store_pb2

_SILENT_FLOOR_S = 0.7
_SILENT_RATIO = 3.0


class Liveness(IntEnum):
    """Liveness of a rank, the most certain cause of a hang first.

    Only the reports of an alive rank are up to date: nothing follows from the pending calls of another one.
    """

    DEAD = 0
    STOPPED = 1
    SILENT = 2
    """Its reporter is not scheduled (the GIL is held, or the node is gone), or the rank has never reported."""
    ALIVE = 3


def liveness_of(ranks: Mapping[int, store_pb2.RankState]) -> dict[int, Liveness]:
    """Return the liveness of each rank.

    A rank is silent after ``max(0.7 s, 3 x the median silence)``: a slow store or a loaded
    machine delays the reports of all ranks alike and makes none of them suspect.
    """
    silences = [state.silent_s for state in ranks.values() if state.life != store_pb2.LIFE_EXITED]
    silent_after_s = max(_SILENT_FLOOR_S, _SILENT_RATIO * median_low(silences)) if silences else _SILENT_FLOOR_S
    return {rank: _liveness(state, silent_after_s) for rank, state in ranks.items()}


def _liveness(state: store_pb2.RankState, silent_after_s: float) -> Liveness:
    if state.life == store_pb2.LIFE_EXITED or state.process_state in ("Z", "X"):
        return Liveness.DEAD
    if state.process_state in ("T", "t"):
        return Liveness.STOPPED
    if state.silent_s > silent_after_s:
        return Liveness.SILENT
    return Liveness.ALIVE
