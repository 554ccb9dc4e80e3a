"""Requests faults from a daemon: one, or many at random."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rich import box
from rich.table import Table

from holdfast_cli.control import ControlClient, ControlError, has_ended
from holdfast_cli.errors import SettingsError
from holdfast_hooks.faults import CATALOGUE, Fault, check, random_faults
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_RUNNING

_LOOK_S = 0.1


def check_fault(fault: Fault) -> None:
    """Raise SettingsError if a fault makes no sense."""
    try:
        check(fault)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def request_fault(client: ControlClient, fault: Fault) -> str:
    """Request a fault; return, once its rank has accepted it, what it waits for and may never get, or "".

    Raises SettingsError if it makes no sense, ControlError if it is refused.
    """
    check_fault(fault)
    return client.inject_fault(fault.to_message())


def fault_table() -> Table:
    """Return the catalogue for people."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("kind", "what happens to the rank", "takes", "verdict to expect"):
        table.add_column(column)
    for name, kind in CATALOGUE.items():
        options = ", ".join(f"--{setting.removesuffix('_s')}" for setting in kind.takes)
        table.add_row(name, kind.what, options, kind.verdict)
    return table


@dataclass(frozen=True, kw_only=True)
class RandomInjection:
    """Faults at random steps. Each is requested when the run reaches its step and trains."""

    rate_per_step: float
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    """Ranks to harm; empty: all of the run."""
    seed: int
    steps: int

    def carry_out(self, client: ControlClient, report: Callable[[str], None]) -> None:
        """Continue for ``steps``, or until the run has ended; ``report`` gets a line for each fault.

        A fault that is refused ends nothing: another kind may strike, or the same one later. Raises SettingsError
        for settings that make no sense, ControlError if the daemon is unreachable or the first fault is refused.
        """
        are_accepted = False
        for fault in self._faults(client.status()):
            try:
                waits_for = self._request(client, fault)
            except ControlError as error:
                if error.unreachable or not are_accepted:
                    raise
                report(f"{fault.kind} of rank {fault.rank} in step {fault.step}: {error}")
                continue
            if waits_for is None:
                return
            are_accepted = True
            then = f": it waits for {waits_for}" if waits_for else f" in step {fault.step}"
            report(f"rank {fault.rank} has accepted {fault.kind}{then}")

    def _faults(self, status: RunStatus) -> Iterator[Fault]:
        first = status.newest_step + 1
        try:
            faults = random_faults(
                rate_per_step=self.rate_per_step,
                kinds=self.kinds,
                ranks=self.ranks or tuple(rank.rank for rank in status.ranks),
                seed=self.seed,
                first_step=first,
            )
        except ValueError as error:
            raise SettingsError(str(error)) from None
        for fault in faults:
            if fault.step >= first + self.steps:
                return
            yield fault

    def _request(self, client: ControlClient, fault: Fault) -> str | None:
        """Request a fault as soon as the run is at its step; return what it waits for, or None if the run ends."""
        while not has_ended(status := client.status()):
            if status.phase == RUN_PHASE_RUNNING and status.newest_step + 1 >= fault.step:
                try:
                    return request_fault(client, replace(fault, step=-1))
                except ControlError:
                    if client.status().phase == RUN_PHASE_RUNNING:
                        raise
            time.sleep(_LOOK_S)
        return None
