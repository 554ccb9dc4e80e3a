"""Takes SIGTERM, or a warning before it, as a request to stop as planned: after a last checkpoint, within a grace."""

import time
from contextlib import suppress
from signal import SIGTERM

from holdfast_base.text import clock
from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.errors import InterruptionError
from holdfast_cli.interruption import Interruption
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_FAILED, RUN_PHASE_FAILED


class Preemption:
    """Passes one SIGTERM, or a warning before it, on to the daemon.

    Another signal, a second SIGTERM or the deadline ends the run immediately. The grace period begins with the first.
    """

    def __init__(self, interruption: Interruption, control: ControlClient, grace_s: float) -> None:
        self._interruption = interruption
        self._control = control
        self._grace_s = grace_s
        self._by_s: float | None = None
        self._until = ""
        self._is_requested = False

    @property
    def is_late(self) -> bool:
        """Whether the run should have ended by now."""
        return self._by_s is not None and time.monotonic() > self._by_s

    def check(self) -> None:
        """Request the stop if it is asked for; raise InterruptionError if the run must end immediately."""
        if not (self._grace_s and self._interruption.asks_for_planned_stop):
            self._interruption.check()
        elif self.is_late:
            raise InterruptionError(SIGTERM, "it did not stop within --preemption-grace-s")
        elif not self._is_requested:
            self._request()

    def check_outcome(self, status: RunStatus) -> None:
        """Raise InterruptionError if the run should have stopped as planned and failed instead.

        A run that Holdfast has given up while it was to stop, as after the same fault again and again, has failed
        whether or not a signal came: its last incident says so.
        """
        has_given_up = status.newest_incident.state == INCIDENT_STATE_FAILED and not self.is_late
        if self._by_s is not None and status.phase == RUN_PHASE_FAILED and not has_given_up:
            raise InterruptionError(SIGTERM, status.outcome)

    def notes(self) -> list[str]:
        """Return a line that says that the run is to stop, once it is."""
        if not self._until:
            return []
        return [f"asked to stop: a last checkpoint, then the end, until {self._until} (--preemption-grace-s)"]

    def _request(self) -> None:
        now_s = time.monotonic()
        if self._by_s is None:
            self._by_s, self._until = now_s + self._grace_s, clock(time.time() + self._grace_s)
        with suppress(ControlError):  # without a daemon, the next pass tries again
            self._control.stop_run(grace_s=self._by_s - now_s)
            self._is_requested = True
