"""A step for which an order reaches all ranks in time."""

import math

from holdfast_daemon.core.turn import Turn

LEAD_S = 2.0
"""From a decision to the last rank that knows of it: a report, a turn and a command, with room for a busy node."""


def step_ahead(turn: Turn) -> int | None:
    """Return a step that no rank will have finished when an order given now arrives; None: no step is timed yet."""
    step_s = turn.state.deadlines.median_step_s
    if step_s is None or not turn.ranks:
        return None
    newest = max(rank.progress.step for rank in turn.ranks.values())
    return newest + math.ceil(LEAD_S / max(step_s, 1e-3))
