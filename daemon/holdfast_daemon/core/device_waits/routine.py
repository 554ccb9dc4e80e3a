"""What a rank's loop did next when it was where it is now: it makes the same calls again and again."""

from collections.abc import Sequence

from holdfast_daemon.core.device_waits.calls import GroupKey

_CONTEXT = 3
"""Calls that must be the same as at an earlier place."""


def known_next_groups(history: Sequence[tuple[GroupKey, str]]) -> set[GroupKey]:
    """Return the groups in which the rank made its next call when it last was where it is now.

    A rank that waits for a new communicator shows nothing of it in its recorder, so it looks like a rank that does
    nothing. But it does so only when it first uses a group. Where the rank has made its next call before, in a group
    in which others wait for it, no such wait explains why it does not make it.
    """
    newest = list(history[-_CONTEXT:])
    size = len(newest)
    return {history[i + size][0] for i in range(len(history) - size) if size and list(history[i : i + size]) == newest}
