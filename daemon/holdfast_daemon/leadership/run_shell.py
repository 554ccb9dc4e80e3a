"""The shell of one run: shows the core what the store holds, and has carried out what the core decides."""

import asyncio
import dataclasses
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

import redis.asyncio

from holdfast_base.redis_client import StoreError
from holdfast_core import coordinator
from holdfast_core.model import CoreState, Observation
from holdfast_daemon.clock import Clock
from holdfast_daemon.daemon_options import DaemonOptions
from holdfast_daemon.history.history_writer import HistoryWriter
from holdfast_daemon.incidents.archive import IncidentArchive, IncidentLog
from holdfast_daemon.incidents.node_file import NodeFile
from holdfast_daemon.leadership.guarded_core import GuardedCore
from holdfast_daemon.leadership.leadership import Held, Leadership
from holdfast_daemon.leadership.lease_keeper import KeptLease, LeaseKeeper
from holdfast_daemon.leadership.missing_events import see_gap
from holdfast_daemon.leadership.outbox import Outbox, Outlets, StoreCounters
from holdfast_daemon.leadership.requests import Requests
from holdfast_daemon.leadership.run_store import LeadershipLostError, RunStore, holds_another_type
from holdfast_daemon.leadership.tick_metrics import TICK_MS, TickMetrics, TickPace
from holdfast_daemon.notify.run_notifier import RunNotifier
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

log = logging.getLogger(__name__)

FOLLOW_S = 5.0
"""Time between two looks of a standby at all that the leader sees. With thousands of nodes, one reads megabytes."""
RETRY_S = 0.2
"""Pause before the store is asked again after a failure."""
LINGER_S = 60.0
"""Time that an ended run stays visible after its last node has left."""


class RunShell:
    """Leads one run whenever it can get the lease, and follows its leader otherwise."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        run: str,
        options: DaemonOptions,
        clock: Clock,
        metrics: TickMetrics,
        *,
        notifier: RunNotifier | None = None,
        histories: HistoryWriter | None = None,
        node_file: NodeFile | None = None,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        """Stand by for a run.

        ``histories``, ``node_file``: the daemon's; None: the shell has its own. ``keeper``: renews the lease also
        during a tick; None: the lease is renewed between ticks alone.
        """
        self.run_name = run
        self._clock = clock
        self._metrics = metrics
        self.pace = TickPace(run, options.lease_s)
        self._standby_s = options.lease_s / 4
        """Pause of a standby before it asks for the lease again."""
        self._store = RunStore(client, run, options.identity, RunKeyFile(options.run_key(run), run))
        node_file = node_file or NodeFile(options.directory)
        self.leadership = Leadership(run, self._store, options.lease_s, KeptLease(run, keeper), node_file)
        self._core = GuardedCore(run)
        self.refusals = self._store.intake.refusals
        self.log = IncidentLog(options.directory, run)
        self.archive = IncidentArchive(options.directory, run)
        self.notifier = notifier or RunNotifier(run, options.directory)
        """Reports the run to people while this daemon leads it."""
        self.requests = Requests()
        self.counters = StoreCounters()
        self.history = (histories or HistoryWriter(options.directory)).queue(run)
        outlets = Outlets(
            store=self._store,
            log=self.log,
            archive=self.archive,
            requests=self.requests,
            metrics=metrics,
            history=self.history,
        )
        self._outbox = Outbox(run, outlets, self.counters)
        self._followed_s = -math.inf
        """Time of the last look at all that the leader sees."""
        self._is_dismissed = False
        self._has_led = False
        """Whether this daemon has led, and has not made way for another one since."""
        self._waits_for_nodes = False
        """Whether states of nodes of the run cannot be read, and nothing is judged."""
        self._alone_since_s: float | None = None
        self.state: CoreState | None = None
        """The core's state, or as much of the leader's as the store holds; None while nothing is known."""
        self.store_up = False

    @property
    def leads(self) -> bool:
        """Whether this daemon leads the run."""
        return self.leadership.leads

    async def run(self) -> None:
        """Lead, or stand by, until the run has ended and all its nodes have left."""
        try:
            while not self._is_dismissed:
                try:
                    if self._is_over():
                        assert self.state is not None
                        await self._store.retire(self.state.record.nodes)
                        return
                    await self._lead_or_follow()
                    self.store_up = True
                except (StoreError, OSError) as error:
                    await self._see_outage(error)
        finally:
            self.leadership.leave()

    async def _lead_or_follow(self) -> None:
        self.pace.begin(self._clock.now())
        self.leadership.mark()
        try:
            if await self._lead():
                await self._tick()
                return
        except LeadershipLostError:
            self._finish_tick()
            await self._see_refusal()
            return
        if self.state is None or self._clock.now() - self._followed_s >= FOLLOW_S:
            self._followed_s = self._clock.now()
            await self._follow()
        await asyncio.sleep(self._standby_s)

    async def _see_refusal(self) -> None:
        """Find out why a write was refused. If no other daemon leads, the next pass takes the lease again."""
        took_s = self.pace.length_s(self._clock.now())
        holder = await self._store.lease.other_holder()
        if holder:
            self._make_way(f"another daemon leads: {holder}")
            return
        self.leadership.doubt()
        log.warning("run %s: the lease has ended during a tick of %.1f s: taking it again", self.run_name, took_s)

    async def _see_outage(self, error: Exception) -> None:
        self.leadership.doubt()
        if holds_another_type(error):
            self.refusals.add("key", "a key", error, "the run is not led: delete the key")
            await asyncio.sleep(self._standby_s)
            return
        self.counters.failures += 1
        if self.store_up:
            log.warning("run %s: the store is unreachable: %s", self.run_name, error)
        self.store_up = False
        await asyncio.sleep(RETRY_S)

    def _make_way(self, why: str) -> None:
        """Lead no more, and drop what is decided and not carried out: another daemon decides it again."""
        self.leadership.lose()
        self._drop_what_waits(why)

    def _drop_what_waits(self, why: str) -> None:
        self._has_led = False
        self._outbox.clear()
        self.notifier.leave(self._clock.now())
        self.requests.refuse_all("another daemon leads now: try again")
        log.warning("run %s: %s", self.run_name, why)

    async def stand_down(self) -> None:
        """Let a standby take over immediately, and lead no more."""
        self._is_dismissed = True
        self.notifier.leave(self._clock.now())
        await self.leadership.release()

    def give_up(self) -> None:
        """Lead no more after an exception: the lease ends by itself, or the next shell of this daemon takes it over."""
        self._is_dismissed = True
        self.leadership.lose()
        self.requests.refuse_all("the daemon has failed on this run and starts anew: try again")

    def _is_over(self) -> bool:
        if self.state is None or not self.leads or self.state.record.phase not in ENDED or self.state.nodes:
            self._alone_since_s = None
            return False
        now_s = self._clock.now()
        self._alone_since_s = self._alone_since_s or now_s
        return now_s - self._alone_since_s > LINGER_S

    async def _lead(self) -> bool:
        """Return whether this daemon leads, with ``state`` as the state to lead from."""
        now_s = self._clock.now()
        if self.leadership.is_fresh(now_s):
            return True
        self.counters.operations += 1
        held = await self.leadership.hold(self.state, now_s)
        if held is None:
            if self._has_led:
                self._make_way("another daemon leads")
            return False
        if held.state is not self.state:
            self.state = held.state
            self.archive.recording.forget()
        if held.is_new:
            self._outbox.see_saved()
            await self._take_up(held, now_s)
        return True

    async def _take_up(self, held: Held, now_s: float) -> None:
        """Begin to lead, or continue after a lease that has ended while no other daemon led."""
        if self._has_led and not held.continues:
            self._drop_what_waits("another daemon has led in between")
        if not self._has_led:  # else people have not heard of what the last tick has found
            self.notifier.assume(held.state, now_s)
        self._has_led = True
        # Now, and not after the next tick, which may take longer than the lease again.
        await self._outbox.drain(self.leadership, held.state.record)

    async def _follow(self) -> None:
        """See what the leader sees, so that operators may ask any daemon."""
        spec = await self._store.spec()
        if spec is not None:
            state = coordinator.begin(spec, await self._store.record(), await self._store.incidents())
            self.state = dataclasses.replace(state, nodes=await self._store.nodes(spec, state.record.nodes))

    async def _tick(self) -> None:
        """Read what is new, have the core decide, and carry its decisions out."""
        assert self.state is not None
        record, spec = self.state.record, self.state.spec
        self.counters.operations += 1
        batch, events, numbers = await self._store.events(record, TICK_MS, spec)
        self.leadership.mark()
        self.counters.operations += 1
        nodes = await self._store.nodes(spec, record.nodes)
        self.leadership.mark()
        if self._has_unread_members(record):
            self.requests.refuse_all("the daemon cannot read the states of the run's nodes: see its log")
            self._finish_tick()
            await asyncio.sleep(RETRY_S)  # events that wait are not waited for
            return
        # Requests are taken after the last wait, so that none is lost if the store fails.
        observation = Observation(nodes=nodes, events=tuple(events), requests=self.requests.take())
        state = see_gap(self.state, batch, events, self.counters)
        self.state = self._decide(state, observation, batch.last_id, numbers)
        self.history.see_state(self.state, self._clock.now())
        await self._outbox.drain(self.leadership, self.state.record)
        # After that: people hear of nothing that a successor would not know.
        self.notifier.see(self.state, self._clock.now())
        self._finish_tick()

    def _has_unread_members(self, record: store.CoordinatorState) -> bool:
        """Return whether nodes of the run send states of which this daemon could read none yet.

        To the core they would be lost, and their ranks would be started elsewhere while they train.
        """
        unread = self._store.intake.unread_nodes().intersection(record.nodes)
        if unread and not self._waits_for_nodes:
            log.error(
                "run %s: this daemon can read no state of %d of its nodes, such as %s: it judges nothing until it can;"
                " give all nodes the same key of the run, and one version of Holdfast",
                self.run_name,
                len(unread),
                min(unread),
            )
        self._waits_for_nodes = bool(unread)
        return self._waits_for_nodes

    def _finish_tick(self) -> None:
        if self.state is not None:
            self.pace.finish(self._clock.now(), self.state.world_size)

    @contextmanager
    def _timed(self, detector: str) -> Iterator[None]:
        """Time a look of a detector. Before it, the tick shows that it makes progress."""
        self.leadership.mark()
        with self._metrics.detector(detector):
            yield

    def _decide(self, state: CoreState, observation: Observation, last_id: str, numbers: dict[str, int]) -> CoreState:
        """Show the core an observation; return its next state, and put its actions into the outbox."""
        now = self._clock.now()
        self.archive.recording.note(state, now, observation)
        with self._metrics.tick():
            stepped = self._core.step(state, now, observation, self._timed)
        if stepped.error is not None:
            self._metrics.tick_failed()
            self.archive.keep_failure(state, now, observation, stepped.error)
        self.requests.settle(observation.requests, stepped.failed_requests)
        record = store.CoordinatorState()
        record.CopyFrom(stepped.state.record)
        record.last_event_id = last_id
        record.event_numbers.update(numbers)
        has_changed = record != state.record
        self._outbox.add(stepped.actions, instance=stepped.state.spec.instance, record_has_changed=has_changed)
        return dataclasses.replace(stepped.state, record=record)
