"""Waits for the step and phase of a rank's faults, and strikes."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

from holdfast_hooks.faults.calls import missing_name
from holdfast_hooks.faults.catalogue import CATALOGUE, check
from holdfast_hooks.faults.fault import Effect, Fault, Site
from holdfast_hooks.identity import Identity
from holdfast_hooks.telemetry.timeline import Moment, Timeline


class Attached(Protocol):
    """The hooks that ``attach`` returns. They know nothing of faults, so that no run loads this package for nothing."""

    _timeline: Timeline
    _state: Mapping[str, Any]
    _undo: ExitStack


class Injector:
    """Arms the faults of one rank, strikes when one is due, and ends the effects that last.

    Any thread may arm faults. Everything else happens on the training thread. While a fault is armed or its effect
    lasts, the timeline reports each moment to this object first. At all other times it costs nothing.
    """

    def __init__(self, site: Site, rank: int) -> None:
        self.rank = rank
        self._site = site
        self._lock = threading.Lock()
        self._waiting: list[Fault] = []
        self._effects: list[Effect] = []
        self._next: Moment | None = None
        """Where the timeline's moments go to next; None while they do not come here."""

    @classmethod
    def into(cls, hooks: Attached) -> "Injector":
        """Return an injector for a process that has called ``attach``, whether or not an agent has started it."""
        injector = cls(Site(hooks._timeline, hooks._state), Identity.from_environment().rank)  # noqa: SLF001 - same package
        hooks._undo.callback(injector.disarm)  # noqa: SLF001
        return injector

    def arm(self, *faults: Fault) -> None:
        """Arm faults, each to strike when it is due. Faults of other ranks are ignored.

        Raises ValueError, and arms none, if one of them is not valid here or comes too late.
        """
        self.lie_in_wait(self.accept(*faults))

    def accept(self, *faults: Fault) -> list[Fault]:
        """Return the faults that :meth:`arm` would arm, or raise ValueError as it does."""
        mine = []
        for fault in faults:
            kind = check(fault)
            if fault.rank == self.rank:
                self._check_here(fault)
                mine.append(replace(fault, phase=fault.phase or kind.phase))
        return mine

    def lie_in_wait(self, accepted: list[Fault]) -> None:
        """Arm faults that :meth:`accept` has returned."""
        with self._lock:
            self._waiting += accepted
            if self._waiting and self._next is None:
                self._next = self._site.timeline.intercept(self._moment)

    def disarm(self) -> None:
        """Forget the faults that have not struck, and end the effects that last (training thread)."""
        with self._lock:
            self._waiting.clear()
        while self._effects:
            self._effects.pop().end()
        self._withdraw()

    def _check_here(self, fault: Fault) -> None:
        if 0 <= fault.step <= self._site.timeline.boundary:
            raise ValueError(
                f"step {fault.step} has already ended: name a later one, or leave it out to strike immediately"
            )
        if CATALOGUE[fault.kind].needs_calls and (missing := missing_name()):
            raise ValueError(f"{fault.kind} cannot strike with this torch ({missing}): choose a fault of another kind")
        if CATALOGUE[fault.kind].needs_model and next(self._site.modules(), None) is None:
            raise ValueError(f"{fault.kind} needs a torch module in the state that this rank gave to attach()")

    def _moment(self, step: int, phase: int, unix_ns: int) -> None:
        forward = self._next
        if forward is not None:
            forward(step, phase, unix_ns)  # first, so that the black box has the moment of the strike
        self._effects = [effect for effect in self._effects if not effect.moment(step, phase)]
        try:
            while (fault := self._next_due(step, phase)) is not None:
                self._strike(fault)
        finally:
            self._withdraw()

    def _next_due(self, step: int, phase: int) -> Fault | None:
        with self._lock:
            due = next((fault for fault in self._waiting if fault.is_due(step, phase)), None)
            if due is not None:
                self._waiting.remove(due)
            return due

    def _strike(self, fault: Fault) -> None:
        effect = CATALOGUE[fault.kind].strike(fault, self._site)
        if effect is not None:
            self._effects.append(effect)

    def _withdraw(self) -> None:
        """Take no more moments if nothing is left to do. Below another injector, this one still passes them on."""
        with self._lock:
            is_idle = not self._waiting and not self._effects
            if self._next is not None and is_idle and self._site.timeline.give_back(self._moment, self._next):
                self._next = None
