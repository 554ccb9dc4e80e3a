"""Whether this process gets the CPU time that it asks for."""

import os
from time import monotonic

from holdfast_checkpoint.priority import cpu_times_s

_WINDOW_S = 0.02
"""Of running and waiting for a core together: long enough to judge by, and a few tensors."""


class CoreShare:
    """Of a process of one thread. What was found last counts until there is something new to judge by."""

    def __init__(self) -> None:
        self._looked_s = monotonic()
        self._seen_s = cpu_times_s(os.getpid())
        self._is_enough = True

    def is_enough(self) -> bool:
        """Whether it has lately run for longer than it has waited for a core."""
        if monotonic() - self._looked_s < _WINDOW_S:
            return self._is_enough
        self._looked_s = monotonic()
        ran_s, waited_s = (now - then for now, then in zip(cpu_times_s(os.getpid()), self._seen_s, strict=True))
        if ran_s + waited_s >= _WINDOW_S:
            self._is_enough = ran_s > waited_s
            self._seen_s = cpu_times_s(os.getpid())
        return self._is_enough
