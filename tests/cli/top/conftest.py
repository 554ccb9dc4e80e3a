"""An app in a terminal of a test's size, on a daemon whose answers the test chooses."""

import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from holdfast_cli.top import poller
from holdfast_cli.top.run_looks import LookSource
from holdfast_cli.top.top_app import TopApp
from holdfast_cli.views.narrowing import narrowed
from holdfast_proto.v1 import control_pb2
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import StacksTaken
from tests.cli.conftest import identity_of, run_record
from tests.support.control_service import ChosenControl, served
from tests.support.coroutines import pytest_pyfunc_call, until
from tests.support.short_folder import folder

__all__ = ["folder", "pytest_pyfunc_call"]


class TopControl(ChosenControl):
    """Also answers what only top asks: with the daemon itself, with stacks, and to a fault."""

    def __init__(self, status: RunStatus) -> None:
        super().__init__(status)
        self.daemon = control_pb2.DaemonStatus()
        self.stacks = StacksTaken()
        self.pages: list[control_pb2.GetStatusRequest] = []
        """Requests for a status."""

    async def GetStatus(self, request: Any, context: Any) -> RunStatus:  # noqa: N802
        self.pages.append(request)
        return narrowed(self.status, request, self.incidents)

    async def GetDaemon(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.daemon

    async def TakeStacks(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        return control_pb2.TakeStacksResponse(nodes=[control_pb2.NodeStacks(node="node-001", taken=self.stacks)])

    async def InjectFault(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        return control_pb2.InjectFaultResponse()


class Watching:
    """A running app, its pilot and the daemon that it watches."""

    def __init__(
        self, app: TopApp, pilot: "Pilot[None]", control: TopControl, socket: Path, daemon: contextlib.AsyncExitStack
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

    async def first_look(self) -> None:
        """Wait until the terminal shows the first state of the run."""
        await until(lambda: self.app._look is not None, "the first look has arrived")
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


@contextlib.asynccontextmanager
async def opened(app: TopApp, size: tuple[int, int]) -> AsyncIterator["Pilot[None]"]:
    """Run an app until the block ends, and wait for its threads: none may ask a server that is about to stop."""
    async with app.run_test(size=size, notifications=True) as pilot:
        yield pilot
    await until(
        lambda: all(not thread.name.startswith("holdfast-top") for thread in threading.enumerate()),
        "the threads of the app have ended",
    )


Watch = Callable[..., "contextlib.AbstractAsyncContextManager[Watching]"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look more often than once a second."""
    monkeypatch.setattr(poller, "LOOK_EVERY_S", 0.05)
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield


@contextlib.asynccontextmanager
async def watching_local(
    folder: Path, status: RunStatus, size: tuple[int, int] = (80, 24), **changes: Any
) -> AsyncIterator[Watching]:
    """Watch a run that `holdfast run` has started here, in the folder ``folder / status.run``."""
    socket, directory = folder / "d.sock", folder / status.run
    directory.mkdir(exist_ok=True)
    me = identity_of(os.getpid())
    identity = {"pid": me.pid, "start_ticks": me.start_ticks, "control": str(socket)}
    run_record(directory, run=status.run, **identity, **changes).save()
    control, app = TopControl(status), TopApp(LookSource(folder, None, None))
    async with served(control, socket), opened(app, size) as pilot:
        top = Watching(app, pilot, control, socket, contextlib.AsyncExitStack())
        await top.first_look()
        yield top


@pytest.fixture
def watch(folder: Path) -> Watch:
    @contextlib.asynccontextmanager
    async def watching(status: RunStatus, size: tuple[int, int] = (80, 24), **others: Any) -> AsyncIterator[Watching]:
        socket = folder / "d.sock"
        control = TopControl(status)
        app = TopApp(LookSource(folder, None, socket), **others)
        async with contextlib.AsyncExitStack() as stack:
            daemon = await stack.enter_async_context(contextlib.AsyncExitStack())
            await daemon.enter_async_context(served(control, socket))
            pilot = await stack.enter_async_context(opened(app, size))
            top = Watching(app, pilot, control, socket, daemon)
            await top.first_look()
            yield top

    return watching
