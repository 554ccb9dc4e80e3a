"""Lets the hooks that a script attaches by itself take the place of those that attached automatically."""

from collections.abc import Callable

_close_automatic: Callable[[], None] | None = None
_is_explicit = False


def begin_automatic(close: Callable[[], None]) -> None:
    """Note that hooks are attached automatically. ``close`` ends their session without a word that the rank leaves."""
    global _close_automatic  # noqa: PLW0603 - a process is one rank, and a rank has one session
    _close_automatic = close


def take_over() -> None:
    """Note that the script attaches by itself, and close the automatic hooks, if there are any."""
    global _close_automatic, _is_explicit  # noqa: PLW0603 - as above
    _is_explicit = True
    close, _close_automatic = _close_automatic, None
    if close is not None:
        close()


def is_explicit() -> bool:
    """Return whether the script has attached by itself in this process."""
    return _is_explicit
