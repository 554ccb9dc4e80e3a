"""Work that may block, done in a thread of its own; its result is brought back to the screen's thread."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from textual.app import App
from textual.message import Message
from textual.message_pump import MessagePump

Result = TypeVar("Result")


class Done(Message):
    """Work has ended in another thread. ``apply`` shows its result."""

    def __init__(self, apply: Callable[[], None]) -> None:
        super().__init__()
        self.apply = apply


def post(target: MessagePump, message: Message) -> None:
    """Post a message from any thread; it is dropped if the screen is gone."""
    with suppress(RuntimeError):  # the loop was closed between the look at it and the call
        target.post_message(message)


def in_background(app: "App[None]", work: Callable[[], Result], show: Callable[[Result], None]) -> None:
    """Call ``work`` in a thread and then ``show`` with its result in the screen's own. ``work`` must not raise.

    A thread that blocks for long does not hold up the end of the command.
    """

    def run() -> None:
        result = work()
        post(app, Done(lambda: show(result)))

    threading.Thread(target=run, name="holdfast-top-work", daemon=True).start()
