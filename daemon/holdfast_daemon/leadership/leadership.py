"""Who leads a run: this daemon's lease, and the state with which it takes over.

The functions at the top decide from values; :class:`Leadership` asks the store.
"""

import dataclasses
import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from holdfast_core import coordinator
from holdfast_core.model import CoreState
from holdfast_daemon.incidents.node_file import NodeFile
from holdfast_daemon.leadership.lease_keeper import KeptLease
from holdfast_daemon.leadership.run_store import RunStore
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

log = logging.getLogger(__name__)


def lowest_fence(state: CoreState | None) -> int:
    """Return the least fence that no agent refuses: agents remember the highest that they have obeyed."""
    return max((node.fence for node in state.nodes.values()), default=0) if state is not None else 0


def may_continue(own: CoreState | None, record: store.CoordinatorState | None, own_fences: Collection[int]) -> bool:
    """Return whether a new leader may lead from its own state.

    It may if no other daemon has led since it led itself: the store's record has one of its fences of that time. A
    store without a record has lost it, and then the own state is the best there is.
    """
    return own is not None and (record is None or record.fence in own_fences)


def anew(state: CoreState, last_event_id: str) -> CoreState:
    """Return the state of a run without a record, kept apart from what the store still holds of it.

    New incidents are numbered after those that are there, and events up to ``last_event_id`` are not read again.
    """
    record = store.CoordinatorState()
    record.CopyFrom(state.record)
    numbers = (name.partition("-")[0] for name in state.incidents)
    record.incident_count = max((int(number) for number in numbers if number.isdecimal()), default=0)
    record.last_event_id = last_event_id
    return dataclasses.replace(state, record=record)


@dataclass(frozen=True)
class Held:
    """A lease that this daemon holds."""

    state: CoreState
    """State to lead from; the one that was given, if nothing has changed it."""
    is_new: bool
    """Whether the lead has just been assumed, or an outage has ended. The store then holds the record and all incidents
    of ``state``."""
    continues: bool
    """Whether ``state`` is this daemon's own: no other daemon has led since it led itself."""


class Leadership:
    """This daemon's lease of one run: gets it, renews it and gives it up.

    Every method raises redis_client.StoreError or OSError while the store is unreachable, and LeadershipLostError if
    another daemon has taken the lease.
    """

    def __init__(
        self,
        run: str,
        run_store: RunStore,
        lease_s: float,
        kept: KeptLease | None = None,
        node_file: NodeFile | None = None,
    ) -> None:
        """Hold no lease yet.

        Args:
            run: name of the run.
            run_store: its keys.
            lease_s: length of the lease.
            kept: has a thread renew the lease during ticks; None: there is no such thread.
            node_file: keeps what is known against nodes from run to run; None: it is not kept.
        """
        self._run = run
        self._store = run_store
        self._lease_s = lease_s
        self._node_file = node_file
        self._kept = kept or KeptLease(run)
        self._renewed_at_s: float | None = None
        """Time of the last renewal; None: ask the store before anything else."""
        self._led_with = 0
        """Fence of the lead that this daemon has assumed last."""
        self._own_fences: set[int] = set()
        """Fences under which this daemon may have written its own state since it began to lead from it."""
        self.leads = False

    async def hold(self, state: CoreState | None, now_s: float) -> Held | None:
        """Get or renew the lease; return None if another daemon has it, or if no spec is published yet.

        A lease is renewed at a third of its length, if no tick is in the way. ``now_s`` may be of any clock that never
        jumps. ``state`` is what this daemon knows of the run.
        """
        is_held = is_renewed = False
        is_doubted = self._renewed_at_s is None
        asked_s = time.monotonic()
        # A lease that is renewed is held during the call too: a reader of ``leads`` must not see the run without a
        # leader. One whose renewal fails is not.
        try:
            is_held = await self._store.lease.acquire(self._lease_s, max(lowest_fence(state), self._led_with))
        finally:
            is_renewed = is_held and self._store.lease.fence == self._led_with
            self.leads = self.leads and is_renewed
        if not is_held:
            self._kept.end()
            return None
        self._renewed_at_s = now_s
        self._kept.take(self._store.lease.value, asked_s)
        state = await self._successor(state) or state
        if is_renewed and state is not None:
            if is_doubted:  # another server may answer now, which lacks what was written last
                self._renewed_at_s = None  # until this has succeeded
                await self.save(state.record, state.incidents.values())
                self._renewed_at_s = now_s
            self.leads = True
            return Held(state, is_new=is_doubted, continues=True)
        assumed = await self._assume(state)
        self.leads = assumed is not None
        return assumed

    def is_fresh(self, now_s: float) -> bool:
        """Return whether the lease is held and need not be renewed yet."""
        return self.leads and self._renewed_at_s is not None and now_s - self._renewed_at_s < self._lease_s / 3

    def doubt(self) -> None:
        """Have the lease renewed before anything else is done: the store was unreachable, and may have lost it.

        Until then the thread does not renew it: a standby that reaches the store may lead.
        """
        self.leave()
        self._renewed_at_s = None

    def mark(self) -> None:
        """Note that the leader makes progress: the lease is renewed during a tick only if it does."""
        self._kept.mark()

    def leave(self) -> None:
        """Have the lease renewed no more: it ends by itself."""
        self._kept.end()

    def lose(self) -> None:
        """Lead no more. The lease ends by itself, or is another daemon's already."""
        self.leave()
        self.leads = False

    async def release(self) -> None:
        """Lead no more, and let a standby take over immediately."""
        self.leave()
        if self.leads:
            self.leads = False
            await self._store.lease.release()

    async def save(
        self,
        record: store.CoordinatorState,
        incidents: Iterable[store.Incident] = (),
        forgotten: Iterable[str] = (),
    ) -> None:
        """Write the record, stamped with the fence of the lease, and change incidents as :meth:`RunStore.save` does."""
        stamped = store.CoordinatorState()
        stamped.CopyFrom(record)
        stamped.fence = self._store.lease.fence
        await self._store.save(stamped, incidents, forgotten)
        if self._node_file is not None:
            self._node_file.see(self._run, record.node_histories)

    async def _successor(self, state: CoreState | None) -> CoreState | None:
        """Return the state of a new run that was published under the name of one that has ended, if there is one."""
        if state is None or state.record.phase not in ENDED:
            return None
        spec = await self._store.spec()
        if spec is None or spec.instance == state.spec.instance:
            return None
        log.info("run %s: published anew", self._run)
        begun = coordinator.begin(spec)
        self._recall_nodes(begun.record)
        await self.save(begun.record)
        return begun

    async def _assume(self, own: CoreState | None) -> Held | None:
        """Become leader; return the state to lead from, or None if there is no spec yet."""
        spec, record = await self._store.spec(), await self._store.record()
        state, continues = own, may_continue(own, record, self._own_fences)
        if not continues:
            if spec is None:
                return None
            state = coordinator.begin(spec, record, await self._store.incidents())
            if record is None:
                # The events before a record that was refused have been taken in; those of a new run have not.
                state = anew(state, await self._store.newest_event_id() if self._store.record_is_bad else "")
                self._recall_nodes(state.record)
        assert state is not None
        self._store.serve(state.spec.instance)
        if continues and record is None and self._own_fences and not self._store.record_is_bad:
            log.warning("run %s: the store has lost the run's data: writing them again", self._run)
        log.info("run %s: leading with fence %d", self._run, self._store.lease.fence)
        if continues:
            self._own_fences.add(self._store.lease.fence)  # before: the store may write the record and not answer
        await self.save(state.record, state.incidents.values())
        self._led_with = self._store.lease.fence  # last: if the store fails before, all of this is done again
        self._own_fences = {self._led_with}
        return Held(state, is_new=True, continues=continues)

    def _recall_nodes(self, record: store.CoordinatorState) -> None:
        """Have the record of a new run begin with what earlier runs knew against nodes.

        Reasons are found again: a node may have been repaired, and a check shows whether it was.
        """
        for history in self._node_file.begin(self._run) if self._node_file is not None else ():
            known = record.node_histories.add()
            known.CopyFrom(history)
            known.quarantine, known.since_unix_s = "", 0.0
