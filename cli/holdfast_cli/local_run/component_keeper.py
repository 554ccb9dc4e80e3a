"""Keeps the components of a run up."""

import re
import threading
import time

from holdfast_cli.errors import CheckpointsUnavailableError, ConfigurationError
from holdfast_cli.local_run.component import Component, ComponentSpec
from holdfast_proto.exit_codes import ExitCode

_OWN_NAME = re.compile(r"^holdfast( \w+)?: ")


class ComponentKeeper:
    """Starts components, and starts them again, from one thread that lives until :meth:`close`.

    One thread, because a process that dies with its parent dies with the thread that started it.
    """

    def __init__(self, tick_s: float = 0.02) -> None:
        self.components: dict[str, Component] = {}
        """By name; replaced, never changed in place."""
        self._tick_s = tick_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._thread.start()

    def add(self, spec: ComponentSpec) -> Component:
        """Start a component and keep it up."""
        component = Component(spec)
        self.components = {**self.components, spec.name: component}
        return component

    def raise_if_fatal(self) -> None:
        """Raise the error of a component that gave up, with its line: ConfigurationError, or for its checkpoints."""
        for component in self.components.values():
            if component.fatal:
                is_of_files = component.fatal_code == ExitCode.CHECKPOINTS_UNAVAILABLE
                kind = CheckpointsUnavailableError if is_of_files else ConfigurationError
                raise kind(_OWN_NAME.sub("", component.fatal))

    def notes(self) -> list[str]:
        """Return one line for each component that was started again or is down, and for data that was set aside."""
        lines = []
        for name, component in self.components.items():
            # Without a restart, one that has just ended has not been looked at yet: it may have ended as it should.
            if component.restarts:
                down = "" if component.pid is not None or component.done else ", is down"
                times = "once" if component.restarts == 1 else f"{component.restarts} times"
                lines.append(f"{name}: started again {times}{down}")
            if component.begun_anew:
                lines.append(f"{name}: {component.begun_anew}")
        return lines

    def close(self, patience_s: float) -> None:
        """End every component, the newest first, then the thread."""
        for component in reversed(self.components.values()):
            component.end(patience_s)
        self._closing.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._closing.wait(self._tick_s):
            for component in self.components.values():
                component.tick(time.monotonic())
