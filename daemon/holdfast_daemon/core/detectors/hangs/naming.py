"""How verdicts on the telemetry of ranks spell what they name."""

from collections.abc import Sequence

from holdfast_daemon.core.detectors.hangs import hang

_GIB = 2.0**30


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, or ``ranks 3, 5``, of many the first few."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {hang.listed(ranks)}"


def gib(nbytes: float) -> str:
    """Return bytes as people read them: ``1.5 GiB``."""
    return f"{nbytes / _GIB:.3g} GiB"
