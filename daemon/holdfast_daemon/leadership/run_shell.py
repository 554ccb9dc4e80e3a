"""The shell of one run: feeds the core what the store holds and carries out what it decides."""

import asyncio
import collections
import dataclasses
import logging
import time
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import redis.asyncio

from holdfast_daemon.clock import Clock
from holdfast_daemon.core import coordinator
from holdfast_daemon.core.model import (
    Action,
    CheckpointAnswered,
    CheckpointRequest,
    CoreState,
    DetectorFailed,
    FaultAnswered,
    FaultRequest,
    Observation,
    Request,
    SaveIncident,
    Send,
    StopRequest,
)
from holdfast_daemon.core.recovery.ending import ENDED
from holdfast_daemon.incidents.archive import IncidentArchive
from holdfast_daemon.incidents.log import IncidentLog
from holdfast_daemon.leadership.guarded_core import GuardedCore
from holdfast_daemon.leadership.run_store import LeadershipLostError, RunStore, holds_another_type
from holdfast_daemon.leadership.tick_metrics import TICK_MS, TickMetrics
from holdfast_daemon.options import DaemonOptions
from holdfast_proto.redis_client import StoreError
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault

log = logging.getLogger(__name__)

RETRY_S = 0.2
LINGER_S = 60.0
"""An ended run stays visible for so long after its last node has left."""

_FAILED = "the daemon failed on this request: its log says why"


@dataclass
class ShellCounters:
    """For /metrics."""

    operations: int = 0
    failures: int = 0


class RunShell:
    """Leads one run whenever it can get the lease."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        run: str,
        options: DaemonOptions,
        clock: Clock,
        metrics: TickMetrics,
    ) -> None:
        self.run_name = run
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._store = RunStore(client, run, options.identity)
        self.core = GuardedCore(run)
        self.refusals = self._store.intake.refusals
        self.log = IncidentLog(options.directory, run)
        self.archive = IncidentArchive(options.directory, run)
        self._requests: list[Request] = []
        self._checkpoint_waiters: list[asyncio.Future[CheckpointAnswered]] = []
        self._fault_waiters: list[tuple[Fault, asyncio.Future[str]]] = []
        self._stop_waiters: list[tuple[StopRequest, asyncio.Future[str]]] = []
        self._renewed_at = 0.0
        self._last_fence = 0
        """Of the leadership that this daemon has assumed last."""
        self._dismissed = False
        self._alone_since: float | None = None
        self._outbox: collections.deque[Action] = collections.deque()
        self._unsaved = False
        """Whether the store lacks what the last ticks have changed of the record and the incidents."""
        self._failed_detectors: set[str] = set()
        """Failures are logged once."""
        self.state: CoreState | None = None
        """The core's state, or as much of the leader's as the store holds; None while nothing is known."""
        self.leads = False
        self.store_up = False
        self.counters = ShellCounters()

    async def run(self) -> None:
        """Lead, or stand by, until the run has ended and all its nodes have left."""
        while not self._dismissed:
            try:
                if self._is_over():
                    assert self.state is not None
                    await self._store.retire(self.state.record.nodes)
                    return
                if await self._lead():
                    await self._tick()
                else:
                    await self._follow()
                    await asyncio.sleep(self._options.lease_s / 4)
                self.store_up = True
            except LeadershipLostError:
                self.leads = False
                self._outbox.clear()
                self.refuse_requests("another daemon leads now: try again")
                log.warning("run %s: another daemon leads", self.run_name)
            except (StoreError, OSError) as error:
                if holds_another_type(error):
                    self.refusals.add("key", "a key", error, "the run is not led: delete the key")
                    self._renewed_at = 0.0
                    await asyncio.sleep(self._options.lease_s / 4)
                    continue
                self.counters.failures += 1
                if self.store_up:
                    log.warning("run %s: the store is away: %s", self.run_name, error)
                self.store_up = False
                self._renewed_at = 0.0
                await asyncio.sleep(RETRY_S)

    async def stand_down(self) -> None:
        """Let a standby take over at once, and lead no more."""
        self._dismissed = True
        if self.leads:
            self.leads = False
            await self._store.release()

    def give_up(self) -> None:
        """Lead no more after an exception: the lease ends by itself, or the next shell of this daemon takes it over."""
        self.leads = False
        self._dismissed = True
        self.refuse_requests("the daemon has failed on this run and starts anew: try again")

    async def request_checkpoint(self) -> CheckpointAnswered:
        """Have the core set the step of an operator's checkpoint."""
        future: asyncio.Future[CheckpointAnswered] = asyncio.get_running_loop().create_future()
        self._checkpoint_waiters.append(future)
        self._requests.append(CheckpointRequest())
        return await future

    def request_stop(self, grace_s: float = 0.0) -> "asyncio.Future[str]":
        """Have the core end the run: within ``grace_s``, after a last checkpoint, or immediately.

        The future holds "" once the core has taken the request in, or why it has not.
        """
        request, answer = StopRequest(grace_s), asyncio.get_running_loop().create_future()
        self._stop_waiters.append((request, answer))
        self._requests.append(request)
        return answer

    def refuse_requests(self, reason: str) -> None:
        """Answer all requests that have not been served."""
        self._requests.clear()
        self._answer(CheckpointAnswered(-1, reason))
        for fault, _ in list(self._fault_waiters):
            self._answer_fault(FaultAnswered(fault, reason))
        for request, _ in list(self._stop_waiters):
            self._answer_stop(request, reason)

    async def request_fault(self, fault: Fault) -> str:
        """Have the core order a fault of a rank; return "" once the rank has accepted it, or why it will not strike."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiter = (fault, answer)
        self._fault_waiters.append(waiter)
        self._requests.append(FaultRequest(fault))
        try:
            return await answer
        finally:
            self._fault_waiters.remove(waiter)

    def _is_over(self) -> bool:
        if self.state is None or not self.leads or self.state.record.phase not in ENDED or self.state.nodes:
            self._alone_since = None
            return False
        self._alone_since = self._alone_since or time.monotonic()
        return time.monotonic() - self._alone_since > LINGER_S

    async def _lead(self) -> bool:
        """Hold the lease, renewed at a third of its length; load the state when it is newly won."""
        if self.leads and time.monotonic() - self._renewed_at < self._options.lease_s / 3:
            return True
        self.counters.operations += 1
        lowest = max((node.fence for node in self.state.nodes.values()), default=0) if self.state else 0
        # A lease that is renewed is held meanwhile: who looks at ``leads`` in between must not see the run without one.
        is_held = False
        try:
            is_held = await self._store.acquire(self._options.lease_s, lowest)
        finally:
            is_renewed = is_held and self._store.fence == self._last_fence
            self.leads = self.leads and is_renewed
        if not is_held:
            return False
        self._renewed_at = time.monotonic()
        if self.state is not None and self.state.record.phase in ENDED:
            await self._look_for_successor(self.state.spec)
        self.leads = is_renewed or await self._assume()
        return self.leads

    async def _look_for_successor(self, ended: store.RunSpec) -> None:
        """Go over to a new run that was published under the name of one that has ended."""
        spec = await self._store.spec()
        if spec is not None and spec.instance != ended.instance:
            log.info("run %s: published anew", self.run_name)
            self.state = coordinator.begin(spec)
            self.archive.recording.forget()
            await self._save(self.state.record)

    async def _follow(self) -> None:
        """See what the leader sees, so that operators may ask any daemon."""
        spec = await self._store.spec()
        if spec is not None:
            state = coordinator.begin(spec, await self._store.record(), await self._store.incidents())
            self.state = dataclasses.replace(state, nodes=await self._store.nodes(spec, state.record.nodes))

    async def _assume(self) -> bool:
        """Become leader: from our own state if nobody led since, else from the store's. False: there is no spec yet."""
        spec, record = await self._store.spec(), await self._store.record()
        if self.state is None or (record is not None and record.fence != self._last_fence):
            if spec is None:
                return False
            incidents = await self._store.incidents()
            self.state = coordinator.begin(spec, record, incidents)
            if record is None:
                await self._begin_anew(self.state)
            self.archive.recording.forget()
        log.info("run %s: leading with fence %d", self.run_name, self._store.fence)
        await self._save(self.state.record, self.state.incidents.values())
        self._unsaved = False
        self._last_fence = self._store.fence  # last: if the store goes away before, all of this is done again
        return True

    async def _begin_anew(self, state: CoreState) -> None:
        """Keep what the store still holds apart from what comes: a record is missing that would do so."""
        record = store.CoordinatorState()
        record.CopyFrom(state.record)
        numbers = (name.partition("-")[0] for name in state.incidents)
        record.incident_count = max((int(number) for number in numbers if number.isdecimal()), default=0)
        if self._store.record_is_bad:  # its events were taken in before
            record.last_event_id = await self._store.newest_event_id()
        self.state = dataclasses.replace(state, record=record)

    async def _save(self, record: store.CoordinatorState, incidents: Iterable[store.Incident] = ()) -> None:
        stamped = store.CoordinatorState()
        stamped.CopyFrom(record)
        stamped.fence = self._store.fence
        await self._store.save(stamped, incidents)

    async def _tick(self) -> None:
        assert self.state is not None
        spec = self.state.spec
        self.counters.operations += 1
        last_id, events = await self._store.events(self.state.record.last_event_id or "0", TICK_MS, spec)
        self.counters.operations += 1
        nodes = await self._store.nodes(spec, self.state.record.nodes)
        requests, self._requests = tuple(self._requests), []
        observation = Observation(nodes=nodes, events=tuple(events), requests=requests)
        before = self.state.record
        now = self._clock.now()
        self.archive.recording.note(self.state, now, observation)
        with self._metrics.tick():
            stepped = self.core.step(self.state, now, observation, self._metrics.detector)
        if stepped.error is not None:
            self._metrics.tick_failed()
            self.archive.keep_failure(self.state, now, observation, stepped.error)
        self._answer_unserved(requests, stepped.failed_requests)
        state, actions = stepped.state, stepped.actions
        record = store.CoordinatorState()
        record.CopyFrom(state.record)
        record.last_event_id = last_id
        self.state = state = dataclasses.replace(state, record=record)
        self._unsaved |= record != before or any(isinstance(action, SaveIncident) for action in actions)
        for action in actions:
            if isinstance(action, Send):  # now: once it is sent, another run of this name may be looked after here
                action.command.instance = state.spec.instance
        self._outbox.extend(actions)
        await self._drain()

    async def _drain(self) -> None:
        """Write what has been decided. If the store goes away in between, the rest is written when it is back."""
        assert self.state is not None
        # First the record and the incidents that it speaks of, then the orders: a successor forgets no incident, and
        # repeats an order rather than forgets it.
        if self._unsaved:
            changed = {it.incident.id: it.incident for it in self._outbox if isinstance(it, SaveIncident)}
            await self._save(self.state.record, changed.values())
            self._unsaved = False
        while self._outbox:
            await self._carry_out(self._outbox[0])
            self._outbox.popleft()

    async def _carry_out(self, action: Action) -> None:
        self.counters.operations += 1
        match action:
            case Send(node=node, command=command):
                # Given once: an order whose writing was cut off is written again under the same id. Not counted: the
                # next daemon of this name may hold the same lease, and would count from the start.
                command.id = command.id or uuid.uuid4().hex
                command.fence = self._store.fence
                await self._store.send(node, command)
            case SaveIncident(incident=incident):
                self.log.append(incident)
                self.archive.keep(incident)
            case CheckpointAnswered():
                self._answer(action)
            case FaultAnswered():
                self._answer_fault(action)
            case DetectorFailed(detector=name, reason=reason):
                self._metrics.detector_failed(name)
                if name not in self._failed_detectors:
                    self._failed_detectors.add(name)
                    log.error("run %s: detector %s failed, and is asked again: %s", self.run_name, name, reason)

    def _answer(self, ordered: CheckpointAnswered) -> None:
        """Tell the operators who wait what became of their checkpoint."""
        for waiter in self._checkpoint_waiters:
            if not waiter.done():
                waiter.set_result(ordered)
        self._checkpoint_waiters.clear()

    def _answer_stop(self, request: StopRequest, reason: str) -> None:
        for waiter in [it for it in self._stop_waiters if it[0] is request]:
            self._stop_waiters.remove(waiter)
            if not waiter[1].done():
                waiter[1].set_result(reason)

    def _answer_unserved(self, requests: Iterable[Request], failed: Collection[Request]) -> None:
        """Answer what the core has not served, and all requests to stop: the core answers the others."""
        for request in requests:
            reason = _FAILED if any(it is request for it in failed) else ""
            match request:
                case StopRequest():
                    self._answer_stop(request, reason)
                case CheckpointRequest() if reason:
                    self._answer(CheckpointAnswered(-1, reason))
                case FaultRequest(fault=fault) if reason:
                    self._answer_fault(FaultAnswered(fault, reason))

    def _answer_fault(self, answered: FaultAnswered) -> None:
        """Tell the operator who has waited longest for this answer: two may have ordered the same."""
        waiting = (it for fault, it in self._fault_waiters if fault == answered.fault and not it.done())
        first = next(waiting, None)
        if first is not None:
            first.set_result(answered.refusal)
