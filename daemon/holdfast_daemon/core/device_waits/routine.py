"""What a rank's loop did next when it was where it is now: it makes the same calls again and again."""

from collections.abc import Sequence

from holdfast_daemon.core.waits.shared_call import GroupKey

_CONTEXT = 3
"""Calls that must be the same as at an earlier place."""


def known_next_calls(history: Sequence[tuple[GroupKey, str]]) -> set[tuple[GroupKey, str]]:
    """Return the calls that the rank made next, by group and signature, when it last was where it is now.

    A rank that waits for a new communicator shows nothing of it in its recorder, so it looks like a rank that does
    nothing. But it does so only when it first uses a group. Where the rank has made the awaited call before, from where
    it is now, no such wait explains why it does not make it. Another call of the same group does not count: the loop
    may well leave that group here for one that it has never used.
    """
    newest = list(history[-_CONTEXT:])
    size = len(newest)
    return {history[i + size] for i in range(len(history) - size) if size and list(history[i : i + size]) == newest}
