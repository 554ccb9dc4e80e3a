"""SIGTERM as a request to stop a run as planned: after a last checkpoint, within the grace period."""

import time
from contextlib import suppress
from signal import SIGTERM

from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.errors import InterruptionError
from holdfast_cli.interruption import Interruption
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FAILED


class Preemption:
    """Passes one SIGTERM on to the daemon. Any other signal, a second one and the deadline end the run at once."""

    def __init__(self, interruption: Interruption, control: ControlClient, grace_s: float) -> None:
        self._interruption = interruption
        self._control = control
        self._grace_s = grace_s
        self._by_s: float | None = None
        self._is_ordered = False

    @property
    def is_late(self) -> bool:
        """Whether the run should have ended by now."""
        return self._by_s is not None and time.monotonic() > self._by_s

    def check(self) -> None:
        """Have the run stopped if that is asked for; raise InterruptionError if it is to end at once."""
        if not (self._grace_s and self._interruption.is_one_sigterm):
            self._interruption.check()
        elif self.is_late:
            raise InterruptionError(SIGTERM, "the time to stop in (--preemption-grace-s) was over before its end")
        elif not self._is_ordered:
            self._order()

    def check_outcome(self, status: RunStatus) -> None:
        """Raise InterruptionError if the run was to stop and has failed instead."""
        if self._by_s is not None and status.phase == RUN_PHASE_FAILED:
            raise InterruptionError(SIGTERM, status.outcome)

    def _order(self) -> None:
        now_s = time.monotonic()
        self._by_s = self._by_s or now_s + self._grace_s
        with suppress(ControlError):  # while there is no daemon: told at the next look
            self._control.stop_run(grace_s=self._by_s - now_s)
            self._is_ordered = True
