"""How moments are spelled for people, in every view: in the time of this machine, with its zone."""

import time


def clock(unix_s: float) -> str:
    """Return a moment of today: ``14:03:59 UTC``."""
    return time.strftime("%H:%M:%S %Z", time.localtime(unix_s))


def moment(unix_s: float) -> str:
    """Return a moment of any day: ``2026-11-27 14:03:59 UTC``; 0, which stands for an unknown one, is ``-``."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(unix_s)) if unix_s > 0.0 else "-"
