"""Telling collectives from point-to-point calls in gloo's sequence numbers.

Gloo numbers both from one counter per group, so that two ranks which have made different numbers of sends
and receives give the same collective different seqs. What point-to-point calls have used up is noted here
and taken off again.
"""

from collections import deque

_REMEMBERED = 4096


class SeqShift:
    """The seqs of one group that went to point-to-point calls.

    Written by the training thread and read by the reporter, without a lock: every entry carries all that
    an answer needs.
    """

    def __init__(self) -> None:
        self._used: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def use(self, seq: int) -> None:
        """Note that a point-to-point call was given ``seq`` (training thread)."""
        self._count += 1
        self._used.append((seq, self._count))

    def before(self, seq: int) -> int:
        """Return how many point-to-point calls were numbered before ``seq``."""
        used = list(self._used)
        for used_seq, count in reversed(used):
            if used_seq < seq:
                return count
        return used[0][1] - 1 if used else 0
