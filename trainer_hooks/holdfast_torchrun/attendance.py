"""A thread that keeps the record of this node fresh in Redis, and holds what it saw there last.

torchrun asks ten times a second whether it should restart its ranks. It gets the answer from what the thread has seen,
so that no server can delay it.
"""

import logging
import threading
from time import monotonic

from redis.exceptions import RedisError

from holdfast_base.redis_client import StoreOutage
from holdfast_base.threads import show_name
from holdfast_proto.v1.meeting_pb2 import MeetingRecord, MeetingWorld
from holdfast_torchrun.meeting import LEASE_S, Sight
from holdfast_torchrun.meeting_store import MeetingStore
from holdfast_torchrun.reading_plan import ReadingPlan

RENEW_S = 0.5
"""Time between two renewals of a record while nothing happens."""
_RENEW_SOON_S = 0.1
"""The same in a smaller world, which may grow. All its ranks must end then, before they fail because others end."""
_LOOK_TIMEOUT_S = 10.0
"""Longest wait for an exchange. The client of Redis gives up much earlier."""

_LOG = logging.getLogger("holdfast_torchrun")


class Attendance:
    """The presence of this torchrun among those of its run."""

    def __init__(self, store: MeetingStore, record: MeetingRecord, where: str) -> None:
        self._store = store
        self._record = record
        self._world: MeetingWorld | None = None
        """The newest world that this torchrun was part of."""
        self._renew_s = RENEW_S
        self._sees_further = False
        """Whether this is the first member of a smaller world: it has to see how long further nodes wait."""
        self._reading = ReadingPlan()
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._rings = 0
        """How often this torchrun has rung."""
        self._ring = ""
        """A bell that is not yet rung."""
        self._is_over = False
        self._sight: Sight | None = None
        self._seen_s = 0.0
        self._steady_since_s = 0.0
        self._outage = StoreOutage(_LOG, where, "the ranks continue, and restarts over nodes wait")
        # A name that the agent knows as one of ours. A daemon thread: torchrun may end at any time.
        self._thread = threading.Thread(target=self._run, name="holdfast-meets", daemon=True)

    def start(self) -> None:
        """Begin to renew the record."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The record stays until it is removed, or is old."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_LOOK_TIMEOUT_S)

    @property
    def is_over(self) -> bool:
        """Whether the record is no longer renewed."""
        return self._is_over

    @property
    def round(self) -> int:
        """Number of the newest world that this torchrun was part of; 0: none."""
        return self._record.round

    @property
    def sight(self) -> Sight | None:
        """What was seen last; None: nothing yet, or Redis cannot be used."""
        return self._sight

    @property
    def is_steady(self) -> bool:
        """Whether Redis could be used for the time of a lease, so that a node that is not seen is lost."""
        return self._sight is not None and monotonic() - self._steady_since_s > LEASE_S

    def begin_to_wait(self) -> None:
        """Tell all others that this torchrun waits for the next world."""
        with self._changed:
            self._record.waiting = True
            self._ring_bell(self._sight)
            self._reading.begin_to_wait(self._world, self._record.process, monotonic())
            self._asked += 1
            self._changed.notify_all()

    def enter(self, world: MeetingWorld) -> None:
        """Tell all others that this torchrun is part of a world, and waits no more."""
        with self._changed:
            self._record.waiting, self._record.round, self._world = False, world.round, world
            is_smaller = len(world.members) < self._record.nodes
            self._renew_s = min(_RENEW_SOON_S + len(world.members) / 1000, RENEW_S) if is_smaller else RENEW_S
            self._sees_further = is_smaller and world.members[0].process == self._record.process
            self._asked += 1
            self._changed.notify_all()

    def look(self, *, at_all: bool = False) -> Sight | None:
        """Return what Redis holds after all changes made here so far; None: it cannot be used.

        ``at_all``: of a node that waits, look at the records of all others.
        """
        with self._changed:
            if at_all:
                self._reading.forget()
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= asked or self._is_over, _LOOK_TIMEOUT_S)
            return self._sight if self._answered >= asked else None

    def _ring_bell(self, sight: Sight | None) -> None:
        """Let all others read the record of this node, unless it is a spare: they do not restart for one."""
        members = [member.node for member in sight.members] if sight is not None else []
        if self._world is not None or not members or self._record.node in members:
            self._ring = self._new_ring()

    def _new_ring(self) -> str:
        # A text that others have heard already would hide that of a node which has rung in between.
        self._rings += 1
        return f"{self._record.node} {self._record.process} {self._rings}"

    def _run(self) -> None:
        show_name()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._answered or self._is_over, self._renew_s)
                if self._is_over:
                    return
                asked, ring = self._asked, self._ring
                record = MeetingRecord()
                record.CopyFrom(self._record)
            sight = self._try(record, ring)
            with self._changed:
                if ring and self._ring == ring:
                    self._ring = "" if sight is not None else self._new_ring()
                self._sight, self._answered = sight, asked
                self._changed.notify_all()

    def _try(self, record: MeetingRecord, ring: str) -> Sight | None:
        try:
            sight = self._exchange(record, ring)
        except (RedisError, OSError) as error:
            self._outage.failed(error)
            return None
        self._outage.answered()
        now_s = monotonic()
        # Others cannot have renewed their records in an outage either.
        if now_s - self._seen_s > LEASE_S / 2:
            self._steady_since_s = now_s
            with self._changed:
                if self._record.waiting:  # others may have chosen the first node without this one
                    self._ring_bell(sight)
        self._seen_s = now_s
        return sight

    def _exchange(self, record: MeetingRecord, ring: str) -> Sight:
        with self._changed:
            nodes = None if self._sees_further else self._reading.nodes_to_read(monotonic(), waits=record.waiting)
        sight = self._store.exchange(record, ring=ring, nodes=nodes)
        with self._changed:
            if (record.waiting, record.round) == (self._record.waiting, self._record.round):
                self._reading.learn(sight, record, monotonic())
        if self._world is not None and sight.round < self._world.round:
            # Redis came back empty or behind in time: without the world, no spare knows the ranks.
            self._store.replace(sight.stored, self._world)
        return sight
