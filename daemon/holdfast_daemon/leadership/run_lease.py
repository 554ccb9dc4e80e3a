"""The lease of one run: who leads it, under which fence.

Both are signed, and Redis itself cannot sign. So a daemon reads them, decides, and writes what it has signed only if
Redis still holds what it has read.
"""

import time

import redis.asyncio

from holdfast_daemon.validation.refused_values import Refusals
from holdfast_proto import keys
from holdfast_proto.limits import FENCE_AHEAD_MS
from holdfast_proto.run_key import ForgedError, RunKeyFile

# KEYS: lease, last fence. Returns both, and the server's time in ms.
LOOK = """
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or '', now_ms}
"""

# KEYS: lease, last fence. ARGV: both as they were read, both as they become, length of the lease in ms.
TAKE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[2], ARGV[4])
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[5])
return 1
"""

RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RunLease:
    """The lease of one run, as one daemon takes it. Every method raises as :class:`RunStore` does."""

    def __init__(
        self, client: redis.asyncio.Redis, run: str, daemon: str, key_file: RunKeyFile, refusals: Refusals
    ) -> None:
        self._client = client
        self._run = run
        self._daemon = daemon
        self._key_file = key_file
        self._refusals = refusals
        self._look = client.register_script(LOOK)
        self._take = client.register_script(TAKE)
        self._release = client.register_script(RELEASE)
        self.fence = 0
        """Fence of this daemon's lease; 0 while it does not lead."""
        self.value = ""
        """The lease as Redis has it while this daemon leads."""

    async def acquire(self, lease_s: float, lowest_fence: int) -> bool:
        """Take or renew the lease with a fence of at least ``lowest_fence``; return whether we lead.

        A fence is larger than all that are signed, and than the server's clock: the store may have been emptied. One
        that is far ahead of the clock counts as none, because agents would refuse all commands with a larger one.
        """
        lease_keys = [keys.leader(self._run), keys.fence(self._run)]
        held, newest, now_ms = await self._look(lease_keys)
        most = int(time.time() * 1000) + FENCE_AHEAD_MS
        holder, own = self._lease_of(held)
        last = self._fence_of(self._signed(lease_keys[1], newest), most)
        fence = self._fence_of(own, most)
        self.fence = 0
        if holder and holder != self._daemon:
            return False
        if not holder or fence < max(last, lowest_fence, 1):
            fence = max(last + 1, now_ms, lowest_fence + 1)
        seal = self._key_file.read().seal
        wanted = seal.sign_text(lease_keys[0], f"{self._daemon} {fence}")
        last_text = seal.sign_text(lease_keys[1], str(fence))
        if await self._take(lease_keys, [held, newest, wanted, last_text, int(lease_s * 1000)]):
            self.fence, self.value = fence, wanted
        return self.fence > 0

    def _lease_of(self, held: bytes) -> tuple[str, str]:
        """Return holder and fence of a lease as it is in the store; two empty texts: nobody holds it."""
        name, _, fence = self._signed(keys.leader(self._run), held).rpartition(" ")
        return name, fence

    def _signed(self, place: str, data: bytes) -> str:
        """Return a signed text, or "" if there is none: what others have written there counts as nothing."""
        try:
            return self._key_file.read().seal.read_text(place, data) if data else ""
        except ForgedError as error:
            self._refusals.add("signature", f"what {place} holds", error, "it counts as nothing")
            return ""

    @staticmethod
    def _fence_of(text: str, most: int) -> int:
        return int(text) if text.isdecimal() and int(text) <= most else 0

    async def release(self) -> None:
        """Give the lease up, so that a standby need not wait until it expires."""
        await self._release([keys.leader(self._run)], [self.value])
        self.fence = 0

    async def other_holder(self) -> str:
        """Return the name of the other daemon that holds the lease; empty: nobody does, or this daemon does."""
        held, _, _ = await self._look([keys.leader(self._run), keys.fence(self._run)])
        name, _ = self._lease_of(held)
        return "" if name == self._daemon else name
