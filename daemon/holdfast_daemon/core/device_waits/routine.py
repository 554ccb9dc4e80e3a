"""Whether a rank has fallen out of its routine: it made these calls before, and now the next one is missing."""

from collections.abc import Sequence

_CONTEXT = 3
"""Calls that must be the same as at an earlier place."""


def next_is_known(history: Sequence[str]) -> bool:
    """Return whether the loop has been where it is now before, and made a call next.

    A rank that waits for a new communicator shows nothing of it in its recorder, so it looks like a rank that does
    nothing. But it does so only when it first uses a group. Where the rank has made its next call before, all that
    it needs exists, and no such wait explains why it does not make it.
    """
    if len(history) <= _CONTEXT:
        return len(history) > 1 and history[-1] in history[:-1]
    now = list(history[-_CONTEXT:])
    return any(list(history[i : i + _CONTEXT]) == now for i in range(len(history) - _CONTEXT))
