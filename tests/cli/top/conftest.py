"""An app in a terminal of a test's size, on a daemon whose answers the test chooses."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from holdfast_cli.top import poller
from holdfast_cli.top.app import TopApp
from holdfast_cli.top.run_source import RunSource
from holdfast_proto.v1.control_pb2 import RunStatus
from tests.support.control_service import ChosenControl, served
from tests.support.coroutines import pytest_pyfunc_call, until
from tests.support.short_folder import folder

__all__ = ["folder", "pytest_pyfunc_call"]


class Watching:
    """A running app, its pilot and the daemon that it watches."""

    def __init__(
        self, app: TopApp, pilot: "Pilot[None]", control: ChosenControl, socket: Path, daemon: contextlib.AsyncExitStack
    ) -> None:
        self.app, self.pilot, self.control, self.socket, self._daemon = app, pilot, control, socket, daemon

    async def stop_daemon(self) -> None:
        """Let nobody answer any more."""
        await self._daemon.aclose()

    @property
    def screen_text(self) -> str:
        """What the terminal shows, line by line."""
        size = self.app.size
        lines = self.app.screen._compositor.render_strips(size)
        return "\n".join(strip.text.rstrip() for strip in lines)

    async def shows(self, text: str) -> None:
        """Wait until the terminal shows a text."""
        await until(lambda: text in self.screen_text, f"{text!r} is on the screen:\n{self.screen_text}")

    async def hides(self, text: str) -> None:
        """Wait until the terminal shows a text no more."""
        await until(lambda: text not in self.screen_text, f"{text!r} is gone")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


Watch = Callable[..., "contextlib.AbstractAsyncContextManager[Watching]"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look more often than once a second."""
    monkeypatch.setattr(poller, "LOOK_EVERY_S", 0.05)
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield


@pytest.fixture
def watch(folder: Path) -> Watch:
    @contextlib.asynccontextmanager
    async def watching(status: RunStatus, size: tuple[int, int] = (80, 24), **others: Any) -> AsyncIterator[Watching]:
        socket = folder / "d.sock"
        control = ChosenControl(status)
        app = TopApp(RunSource(folder, None, socket), **others)
        async with contextlib.AsyncExitStack() as stack:
            daemon = await stack.enter_async_context(contextlib.AsyncExitStack())
            await daemon.enter_async_context(served(control, socket))
            pilot = await stack.enter_async_context(app.run_test(size=size, notifications=True))
            yield Watching(app, pilot, control, socket, daemon)

    return watching
