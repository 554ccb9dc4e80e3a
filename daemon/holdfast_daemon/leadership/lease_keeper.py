"""Renews the leases of a daemon's runs on a thread, so that a tick may take longer than a lease.

A tick is Python that computes on the daemon's event loop, and with thousands of ranks it may take many seconds. The
loop renews a lease between two ticks. Where it is late, the thread renews the lease during the tick.

The thread never takes a lease: a script renews it only while it is exactly the one that the loop has got. It also
renews only while the tick makes progress, so that a leader that is stuck keeps no standby out forever.
"""

import logging
import threading
import time
from collections.abc import Callable
from enum import Enum, auto

import redis

from holdfast_base.redis_client import StoreError
from holdfast_base.threads import show_name
from holdfast_proto import keys

log = logging.getLogger(__name__)

LONGEST_SILENCE_S = 30.0
"""Time without a mark of progress after which a leader counts as stuck.

It is three times the longest whole tick that was seen (10 s, with thousands of ranks), and a tick has many marks. After
about the same time, agents report that no daemon leads the run.
"""
_DUE_SHARE = 1 / 2
"""Share of the lease after which the thread renews it. The loop does at a third, so the thread acts if it is late."""
_LOOK_SHARE = 1 / 10
"""Share of the lease between two looks of the thread."""
_CLOSE_S = 1.0

# KEYS: lease. ARGV: lease as the leader holds it, its length in ms.
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""


class Step(Enum):
    """What the thread does about a lease."""

    WAIT = auto()
    RENEW = auto()
    LEAVE = auto()
    """Let it end: the leader is stuck."""


def next_step(*, since_renewal_s: float, since_mark_s: float, lease_s: float, limit_s: float) -> Step:
    """Return what to do about a lease, by the times since its renewal and since the last mark of progress."""
    if since_renewal_s < lease_s * _DUE_SHARE:
        return Step.WAIT
    return Step.RENEW if since_mark_s <= limit_s else Step.LEAVE


class KeptLease:
    """The lease of one run, as its shell holds it. The loop writes it, and the thread reads it.

    Without a keeper nobody reads it, and the loop alone renews the lease.
    """

    def __init__(self, run: str, keeper: "LeaseKeeper | None" = None) -> None:
        self.run = run
        self._keeper = keeper
        self.value = ""
        """The lease as it is in the store: name of the daemon and fence."""
        self.renewed_s = 0.0
        """Monotonic time just before the last renewal."""
        self.marked_s = 0.0
        """Monotonic time of the last mark of progress."""
        self.reported_mark_s = -1.0
        """The mark after which the thread has reported that the leader is stuck; -1: it has not."""

    def take(self, value: str, asked_s: float) -> None:
        """Note that the loop has got or renewed the lease. ``asked_s``: monotonic time just before that."""
        self.value = value
        self.renewed_s = max(self.renewed_s, asked_s)
        self.mark()
        if self._keeper is not None:
            self._keeper.keep(self)

    def mark(self) -> None:
        """Note that the leader makes progress."""
        self.marked_s = time.monotonic()

    def end(self) -> None:
        """Have the thread renew it no more, from now on."""
        if self._keeper is not None:
            self._keeper.drop(self)


class LeaseKeeper:
    """The thread of a daemon that renews the leases of all runs that it leads.

    ``connect``: returns a client of its own. ``limit_s``: time without progress after which a leader counts as stuck.
    """

    def __init__(
        self, connect: Callable[[], redis.Redis], lease_s: float, *, limit_s: float = LONGEST_SILENCE_S
    ) -> None:
        self._client = connect()
        self._lease_s = lease_s
        self._limit_s = limit_s
        self._kept: set[KeptLease] = set()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, lease: KeptLease) -> None:
        """Renew a lease from now on. The first call starts the thread: a standby needs none."""
        self._kept.add(lease)
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._keep_forever, name="holdfast-leases", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are too many threads: the loop renews the lease, and asks again
                return
            self._thread = thread

    def drop(self, lease: KeptLease) -> None:
        """Renew a lease no more."""
        self._kept.discard(lease)

    def close(self) -> None:
        """End the thread. It may hang in the store: then it ends with the process."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._client.close()

    def _keep_forever(self) -> None:
        show_name()
        while not self._closing.wait(self._lease_s * _LOOK_SHARE):
            for lease in list(self._kept):
                self._look(lease)

    def _look(self, lease: KeptLease) -> None:
        now_s, marked_s = time.monotonic(), lease.marked_s
        step = next_step(
            since_renewal_s=now_s - lease.renewed_s,
            since_mark_s=now_s - marked_s,
            lease_s=self._lease_s,
            limit_s=self._limit_s,
        )
        if step is Step.RENEW:
            self._extend(lease, now_s)
        elif step is Step.LEAVE and lease.reported_mark_s != marked_s:
            lease.reported_mark_s = marked_s
            log.warning(
                "run %s: its tick has made no progress for %.1f s: its lease now ends, so that a standby can lead",
                lease.run,
                now_s - marked_s,
            )

    def _extend(self, lease: KeptLease, now_s: float) -> None:
        try:
            length_ms = str(int(self._lease_s * 1000))
            is_ours = self._client.eval(RENEW, 1, keys.leader(lease.run), lease.value, length_ms)
        except (StoreError, OSError):  # the loop finds the same, and reports it
            return
        if is_ours:  # if not, the next write of the loop is refused
            lease.renewed_s = max(lease.renewed_s, now_s)
