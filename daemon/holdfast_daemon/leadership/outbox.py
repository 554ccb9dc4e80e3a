"""What the core has decided, on its way out."""

import collections
import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast_core.model import (
    Action,
    CheckpointAnswered,
    CheckpointCounted,
    DetectorFailed,
    FaultAnswered,
    ForgetIncident,
    LiveAnswered,
    SaveIncident,
    Send,
    StepCounted,
)
from holdfast_daemon.history.history_writer import HistoryQueue
from holdfast_daemon.incidents.archive import IncidentArchive, IncidentLog
from holdfast_daemon.leadership.leadership import Leadership
from holdfast_daemon.leadership.requests import Requests
from holdfast_daemon.leadership.run_store import RunStore
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)


@dataclass
class StoreCounters:
    """Operations on the store, for /metrics."""

    operations: int = 0
    failures: int = 0
    events_missed: int = 0


@dataclass(frozen=True, kw_only=True)
class Outlets:
    """Where the actions of one run's core go."""

    store: RunStore
    log: IncidentLog
    archive: IncidentArchive
    requests: Requests
    metrics: TickMetrics
    history: HistoryQueue


class Outbox:
    """Actions of one run's core that are not carried out yet, in order.

    If the store fails in between, or the lease ends, the rest is carried out later. Only if another daemon has led by
    then, it is dropped.
    """

    def __init__(self, run: str, outlets: Outlets, counters: StoreCounters) -> None:
        self._run = run
        self._to = outlets
        self._counters = counters
        self._actions: collections.deque[Action] = collections.deque()
        self._is_unsaved = False
        """Whether the store lacks what the last ticks have changed of the record and the incidents."""
        self._failed_detectors: set[str] = set()
        """Detectors whose failure has been logged."""

    def add(self, actions: Iterable[Action], *, instance: str, record_has_changed: bool) -> None:
        """Take in what a tick of the run's ``instance`` has led to."""
        for action in actions:
            # The history is handed its rows now: it needs no store. A row that comes twice is kept once.
            if isinstance(action, StepCounted):
                self._to.history.add_step(instance, action.summary)
                continue
            if isinstance(action, CheckpointCounted):
                self._to.history.add_checkpoint(instance, action.event)
                continue
            if isinstance(action, Send):  # now: when it is sent, this shell may lead another run of the same name
                action.command.instance = instance
            self._is_unsaved |= isinstance(action, SaveIncident | ForgetIncident)
            self._actions.append(action)
        self._is_unsaved |= record_has_changed

    def clear(self) -> None:
        """Drop all actions: another daemon leads, or has led, and decides them again from the same events."""
        self._actions.clear()

    def see_saved(self) -> None:
        """Note that the store has the record and all incidents as they are now. It may also have forgotten ones."""
        self._is_unsaved = any(isinstance(one, ForgetIncident) for one in self._actions)

    async def drain(self, leadership: Leadership, record: store.CoordinatorState) -> None:
        """Carry all actions out. Raises as :class:`RunStore` does; what is not carried out then stays."""
        # First the record and the incidents that it names, then the commands: a successor must forget no incident, and
        # it may repeat a command, because agents carry each out once.
        if self._is_unsaved:
            # Of several actions on one incident the last counts.
            newest: dict[str, store.Incident | None] = {}
            for one in self._actions:
                if isinstance(one, SaveIncident):
                    newest[one.incident.id] = one.incident
                elif isinstance(one, ForgetIncident):
                    newest[one.incident] = None
            changed = [incident for incident in newest.values() if incident is not None]
            await leadership.save(record, changed, [name for name, incident in newest.items() if incident is None])
            self._is_unsaved = False
        while self._actions:
            self._counters.operations += 1
            await self._carry_out(self._actions[0])
            self._actions.popleft()
            leadership.mark()

    async def _carry_out(self, action: Action) -> None:
        match action:
            case Send(node=node, command=command):
                # An id is given once, so that a command whose writing was cut off is written again under the same id.
                # It is random and no count, because the next daemon of this name may hold the same lease, and would
                # count from the start.
                command.id = command.id or uuid.uuid4().hex
                command.fence = self._to.store.lease.fence
                await self._to.store.send(node, command)
            case SaveIncident(incident=incident):
                self._to.log.append(incident)
                self._to.archive.keep(incident)
            case ForgetIncident():
                pass  # it has left the store with the record
            case CheckpointAnswered() | FaultAnswered() | LiveAnswered():
                self._to.requests.answer(action)
            case DetectorFailed(detector=name, reason=reason):
                self._to.metrics.detector_failed(name)
                if name not in self._failed_detectors:
                    self._failed_detectors.add(name)
                    log.error("run %s: detector %s failed, and is asked again: %s", self._run, name, reason)
