"""Brings what other threads find to the app and its screens: what the poller sees, and results of work that may block.

All of it arrives as a message in the queue of the screen that shows it. Textual reads that queue only while the
screen has all its widgets: after they are mounted, and before the first of them is removed. So no screen checks whether
it is open, and what arrives for a screen that is closed is dropped.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen

from holdfast_cli.top.poller import Lost
from holdfast_cli.top.run_looks import RunLook

Result = TypeVar("Result")


class Seen(Message, bubble=False):
    """The poller has looked."""

    def __init__(self, seen: RunLook | Lost) -> None:
        super().__init__()
        self.seen = seen


class Done(Message, bubble=False):
    """Work has ended in another thread. ``apply`` shows its result."""

    def __init__(self, apply: Callable[[], None]) -> None:
        super().__init__()
        self.apply = apply


class LiveScreen(Screen[None]):
    """A screen that changes while it is open."""

    def show(self, look: RunLook) -> None:
        """Show a newer state of the run."""

    def show_lost(self, lost: Lost) -> None:
        """Show that a look has failed."""

    def on_seen(self, message: Seen) -> None:
        """Show what the poller has seen."""
        if isinstance(message.seen, Lost):
            self.show_lost(message.seen)
        else:
            self.show(message.seen)

    def on_done(self, message: Done) -> None:
        """Show the result of work in another thread."""
        message.apply()


def post(target: MessagePump, message: Message) -> None:
    """Post a message from any thread; it is dropped if the target is closed."""
    with suppress(RuntimeError):  # the target has left its app, or the loop was closed, since it was looked at
        target.post_message(message)


def in_background(target: MessagePump, work: Callable[[], Result], show: Callable[[Result], None]) -> None:
    """Call ``work`` in a thread and then ``show`` with its result in the target's own. ``work`` must not raise.

    A thread that blocks for long does not hold up the end of the command.
    """

    def run() -> None:
        result = work()
        post(target, Done(lambda: show(result)))

    threading.Thread(target=run, name="holdfast-top-work", daemon=True).start()
