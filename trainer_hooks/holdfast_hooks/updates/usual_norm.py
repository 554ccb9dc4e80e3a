"""The usual norm of a run's gradient, and the verdict on a norm that is far above it.

All ranks judge the same norms in the same order, so all of them come to the same verdict. A restart must not change
that: the norms are part of every snapshot.
"""

import math
import statistics
from collections import deque
from enum import Enum
from typing import Any

KEY = "update_norms"
"""Key of the norms, next to the random states of a snapshot."""
LEAST_NORMS = 16
"""Fewest norms that show what is usual."""
TIMES_USUAL = 10.0
"""Multiple of the usual norm above which a norm is too large."""
MOST_SKIPS = 8
"""Updates that are skipped in a row because of the size alone. After them, the large norm is the usual one."""
_NEWEST_NORMS = 64


class NormVerdict(Enum):
    """How the norm of a step is judged."""

    USUAL = "the update is taken"
    NEW_LEVEL = "the update is taken, although the norm is too large: so were too many before it"
    TOO_LARGE = "the update is skipped, because the norm is far above the usual one"
    NOT_FINITE = "the update is skipped, because the norm is not finite"

    @property
    def updates(self) -> bool:
        """Whether the optimizer may step."""
        return self in (NormVerdict.USUAL, NormVerdict.NEW_LEVEL)


class UsualNorm:
    """Keeps the newest norms of steps that were updated. Their median is the usual norm."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=_NEWEST_NORMS)
        self._skips = 0
        """Updates skipped for their size since the newest one that was taken."""
        self.skipped_total = 0
        """Updates skipped for their size in the whole run."""

    @property
    def usual(self) -> float | None:
        """The usual norm; None while too few norms are known, or if it is 0: then nothing is too large."""
        return statistics.median(self._norms) or None if len(self._norms) >= LEAST_NORMS else None

    def judge(self, norm: float) -> NormVerdict:
        """Judge the norm of the next step, and keep it if its update is taken."""
        if not math.isfinite(norm):
            return NormVerdict.NOT_FINITE
        usual = self.usual
        verdict = NormVerdict.USUAL
        if usual is not None and norm > TIMES_USUAL * usual:
            if self._skips < MOST_SKIPS:
                self._skips += 1
                self.skipped_total += 1
                return NormVerdict.TOO_LARGE
            verdict = NormVerdict.NEW_LEVEL
            self._norms.clear()
        self._norms.append(norm)
        self._skips = 0
        return verdict

    def state_dict(self) -> dict[str, Any] | None:
        """Return what :meth:`load_state_dict` needs; None if no update was judged yet."""
        if not self._norms:
            return None
        return {"norms": list(self._norms), "skips": self._skips, "skipped_total": self.skipped_total}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from a snapshot. ``None``: it has no norms, so nothing is known any more.

        Raises ValueError if the norms are damaged.
        """
        saved: dict[str, Any] = {"norms": [], "skips": 0, "skipped_total": 0} if state is None else state
        try:
            norms, counts = list(saved["norms"]), (saved["skips"], saved["skipped_total"])
        except (LookupError, TypeError) as error:
            raise ValueError(f"the norms of the updates are damaged: {error!r}") from error
        are_norms = all(type(norm) is float and math.isfinite(norm) for norm in norms)
        if not are_norms or not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("the norms of the updates are damaged: they are no numbers")
        self._norms = deque(norms, maxlen=_NEWEST_NORMS)
        self._skips, self.skipped_total = counts
