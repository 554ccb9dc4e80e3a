"""Stretches time limits on a node whose cores are shared by more than they can run."""

import os
from pathlib import Path

MOST_TIMES = 5.0
"""Most that a limit is stretched: the restart of the run waits for the evidence."""

_LOAD = Path("/proc/loadavg")


def stretched(limit_s: float) -> float:
    """Return a limit for this moment: N times as long while N processes share each core.

    So a limit ends only what hangs. What merely waits for a core has as much time of a core as on an idle node.
    """
    return round(limit_s * min(MOST_TIMES, max(1.0, _load() / (os.cpu_count() or 1))), 2)


def _load() -> float:
    """Return how many processes want to run: on average over a minute, or now if that is more."""
    try:
        average, _, _, now, _ = _LOAD.read_text().split()
        return max(float(average), float(now.partition("/")[0]))
    except (OSError, ValueError):
        return 0.0
