"""Server-sent events: one producer for all pages that show the same, and a bounded queue for each page."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from holdfast_daemon.console.serving.browser_json import encoded

log = logging.getLogger(__name__)

LEAST_PAUSE_S = 0.5
COST_RATIO = 75.0
"""A round that took 20 ms of processor time is followed by a pause of 1.5 s."""
QUEUED = 32
"""Events that wait for a page. One that reads so slowly that there are more is dropped, and connects again."""
UNUSED_S = 10.0
"""Time without a page after which a feed may be forgotten."""
COMMENT_S = 15.0
"""Time after which a comment keeps a silent stream open."""

Event = tuple[str, dict[str, Any]]
"""Name and data."""


class EndedError(Exception):
    """A feed has nothing to show any more."""


def event_bytes(event: Event) -> bytes:
    """Return an event as it is sent."""
    name, data = event
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encoded(data))


class Page:
    """One open stream."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUED + 1)
        self.is_open = True

    def put(self, data: bytes) -> None:
        """Queue an event. A page whose queue is full ends after what it has."""
        if self.is_open and self._queue.qsize() < QUEUED:
            self._queue.put_nowait(data)
        else:
            self.end()

    def end(self) -> None:
        """End the stream after what is queued."""
        if self.is_open:
            self.is_open = False
            self._queue.put_nowait(None)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield what is to be sent, until the stream ends."""
        while True:
            try:
                data = await asyncio.wait_for(self._queue.get(), COMMENT_S)
            except TimeoutError:
                data = b": open\n\n"
            if data is None:
                return
            yield data


class Feed:
    """Produces events while pages are open.

    ``first`` returns the events with which a page begins: what the pages that are open have been sent in all.
    ``changes`` returns what has changed since the last call of either; it raises EndedError after the last event.
    """

    def __init__(
        self,
        first: Callable[[bool], Sequence[Event]],
        changes: Callable[[], Iterable[Event]],
        least_pause_s: float = LEAST_PAUSE_S,
        urgent: Callable[[], object] = lambda: None,
    ) -> None:
        """``first`` takes whether the page is the only one: then nobody depends on what was sent before.

        ``urgent`` returns at little cost what pages must show at once: a change of it ends a long pause.
        """
        self._first = first
        self._changes = changes
        self._urgent = urgent
        self._least_pause_s = least_pause_s
        self._pages: set[Page] = set()
        self._task: asyncio.Task[None] | None = None
        self._idle_since_s = time.monotonic()

    @property
    def pages(self) -> int:
        """Number of open pages."""
        return len(self._pages)

    @property
    def is_unused(self) -> bool:
        """Whether no page has been open for a while. A page that is about to open is not counted yet."""
        return not self._pages and time.monotonic() - self._idle_since_s > UNUSED_S

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the parts of a new page's stream."""
        page = Page()
        for event in self._first(not self._pages):
            page.put(event_bytes(event))
        self._pages.add(page)
        if self._task is None:
            self._task = asyncio.create_task(self._produce())
        try:
            async for part in page.parts():
                yield part
        finally:
            self._pages.discard(page)
            self._idle_since_s = time.monotonic()

    def end(self, last: Event | None = None) -> None:
        """End all streams, after a last event if there is one."""
        for page in self._pages:
            if last is not None:
                page.put(event_bytes(last))
            page.end()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _pause(self, pause_s: float, sent: object) -> None:
        """Sleep for a time, in parts. End early if something urgent is not as it was ``sent``."""
        ends_s = time.monotonic() + pause_s
        while (left_s := ends_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, self._least_pause_s))
            if self._urgent() != sent:
                return

    async def _produce(self) -> None:
        pause_s, sent = self._least_pause_s, self._urgent()
        try:
            while True:
                await self._pause(pause_s, sent)
                if not self._pages:
                    return
                begun_s, sent = time.thread_time(), self._urgent()
                for event in self._changes():
                    data = event_bytes(event)
                    for page in self._pages:
                        page.put(data)
                pause_s = max(self._least_pause_s, COST_RATIO * (time.thread_time() - begun_s))
        except EndedError as last:
            for page in self._pages:
                for event in last.args:
                    page.put(event_bytes(event))
                page.end()
        except Exception as error:
            log.error("a stream of the console failed: %r", error, exc_info=error)
            for page in self._pages:
                page.end()
        finally:
            self._task = None
