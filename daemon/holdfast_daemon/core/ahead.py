"""A step for which an order reaches all ranks in time."""

import math

from holdfast_daemon.core.tick import Tick

LEAD_S = 2.0
"""From a decision to the last rank that knows of it: a report, a tick and a command, with room for a busy node."""


def step_ahead(tick: Tick) -> int | None:
    """Return a step that no rank will have finished when an order given now arrives; None: no step is timed yet."""
    step_s = tick.state.deadlines.median_step_s
    if step_s is None or not tick.ranks:
        return None
    newest = max(rank.progress.step for rank in tick.ranks.values())
    return newest + math.ceil(LEAD_S / max(step_s, 1e-3))
