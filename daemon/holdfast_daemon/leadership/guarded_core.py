"""Runs the core's ticks, and survives one that raises: what it raised on is found, left out and counted.

The core is pure, so that a tick may be tried any number of times. A run whose tick raised stays led by all the input
that does not raise, and no other run is affected.
"""

import logging
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from holdfast_core import coordinator
from holdfast_core.model import Action, CoreState, Observation, Request
from holdfast_core.tick import Timed
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

Nodes: TypeAlias = Mapping[str, store.NodeState]

MOST_TRIES = 64
"""Most tries in one tick. On thousands of ranks a try takes some time, and other runs wait for it."""

DISTRUST_S = 10.0
"""Time for which the core does not see new states of a node whose state made it raise."""


@dataclass(frozen=True)
class Stepped:
    """What a tick leads to."""

    state: CoreState
    actions: list[Action]
    failed_requests: tuple[Request, ...] = ()
    """Requests that were not served, and whose operators need an answer."""
    error: Exception | None = None
    """The first exception of the tick."""


class GuardedCore:
    """Runs the ticks of one run's core."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._logged: set[tuple[str, ...]] = set()
        self._distrusted: dict[str, float] = {}
        """Node -> time until which the core sees its older state."""

    def step(self, state: CoreState, now: float, observation: Observation, timed: Timed = nullcontext) -> Stepped:
        """Return what the tick leads to; if it raises, what it leads to without the input that it raises on."""
        nodes = self._trusted(state, now, observation.nodes)
        try:
            shown = Observation(nodes=nodes, events=observation.events, requests=observation.requests)
            return Stepped(*coordinator.step(state, now, shown, timed))
        except Exception as error:  # noqa: BLE001 (whatever it is, the run stays led; it is counted and logged once)
            self._log(error, "a tick of its core failed: what it failed on is passed over")
            return self._salvage(state, nodes, observation, error, _Attempts(now, timed))

    def _trusted(self, state: CoreState, now: float, nodes: Nodes) -> Nodes:
        self._distrusted = {name: until for name, until in self._distrusted.items() if until > now}
        return _with_older(nodes, state.nodes, self._distrusted) if self._distrusted else nodes

    def _salvage(
        self, state: CoreState, nodes: Nodes, observation: Observation, error: Exception, attempts: "_Attempts"
    ) -> Stepped:
        bad = attempts.bad_nodes(state, nodes)
        if bad is None:
            return Stepped(state, [], observation.requests, error)
        for name in bad:
            self._distrusted[name] = attempts.now + DISTRUST_S
        nodes = _with_older(nodes, state.nodes, bad)
        state, actions = attempts.fold_events(state, nodes, observation.events)
        failed = []
        for request in observation.requests:
            served = attempts.step(state, Observation(nodes=nodes, requests=(request,)))
            if served is None:
                failed.append(request)
            else:
                state, more = served
                actions += more
        return Stepped(state, actions, tuple(failed), error)

    def _log(self, error: Exception, what: str) -> None:
        """Log an exception with its traceback, the first time that it comes from this place."""
        place = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-1:]]
        kind = (type(error).__name__, *place)
        if kind not in self._logged and len(self._logged) < MOST_TRIES:
            self._logged.add(kind)
            log.error("run %s: %s", self._run, what, exc_info=error)


class _Attempts:
    """Tries ticks, at most MOST_TRIES of them."""

    def __init__(self, now: float, timed: Timed) -> None:
        self.now = now
        self._timed = timed
        self._left = MOST_TRIES

    def step(self, state: CoreState, observation: Observation) -> tuple[CoreState, list[Action]] | None:
        """Return what a tick leads to; None if it raises, or no try is left."""
        if self._left == 0:
            return None
        self._left -= 1
        try:
            return coordinator.step(state, self.now, observation, self._timed)
        except Exception:  # noqa: BLE001 (that a tick raises is the answer that is wanted here)
            return None

    def bad_nodes(self, state: CoreState, nodes: Nodes) -> list[str] | None:
        """Return the nodes on whose newest states the core raises; None if it raises on the old ones too.

        Halves of the changed nodes are tried, and of a half that raises its halves again: a few bad nodes among
        thousands are found in a few tries.
        """
        if self.step(state, Observation(nodes=nodes)) is not None:
            return []
        changed = [name for name in {**state.nodes, **nodes} if state.nodes.get(name) is not nodes.get(name)]
        if self.step(state, Observation(nodes=_with_older(nodes, state.nodes, changed))) is None:
            return None
        bad: list[str] = []
        waiting = [changed]
        unseen = set(changed)
        while waiting:
            names = waiting.pop()
            shown = _with_older(nodes, state.nodes, [*bad, *(unseen - set(names))])
            if self.step(state, Observation(nodes=shown)) is not None:
                unseen -= set(names)
            elif len(names) == 1:
                bad += names
                unseen -= set(names)
            else:
                waiting += [names[len(names) // 2 :], names[: len(names) // 2]]
        return bad

    def fold_events(
        self, state: CoreState, nodes: Nodes, events: Sequence[store.Event]
    ) -> tuple[CoreState, list[Action]]:
        """Return what the events lead to, in their order, without those on which the core raises."""
        actions: list[Action] = []
        waiting = [tuple(events)]
        while waiting:
            piece = waiting.pop()
            stepped = self.step(state, Observation(nodes=nodes, events=piece))
            if stepped is not None:
                state, more = stepped
                actions += more
            elif len(piece) > 1:
                waiting += [piece[len(piece) // 2 :], piece[: len(piece) // 2]]
        return state, actions


def _with_older(nodes: Nodes, older: Nodes, names: "Sequence[str] | Mapping[str, float]") -> Nodes:
    """Return ``nodes`` with the older states of some; those that had none are left out."""
    shown = {name: node for name, node in nodes.items() if name not in names or name in older}
    shown.update({name: older[name] for name in names if name in older})
    return shown
