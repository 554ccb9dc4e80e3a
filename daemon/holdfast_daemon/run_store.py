"""One run in Redis, as a daemon reads it and, while it leads, writes it."""

from collections.abc import Iterable
from typing import Any

import redis.asyncio

from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store

EVENTS_PER_READ = 512
COMMANDS_KEPT = 1000
ENDED_RUN_TTL_S = 86_400

# KEYS: lease, last fence. ARGV: daemon, lease in ms, lowest acceptable fence.
# Returns the fence if the daemon now leads, else 0. The fence grows even if the store was emptied in
# between: the server's clock is its lower bound.
_ACQUIRE = """
local holder = redis.call('GET', KEYS[1])
if holder then
  local name, fence = string.match(holder, '^(.*) (%d+)$')
  if name ~= ARGV[1] then return 0 end
  if tonumber(fence) >= tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return tonumber(fence)
  end
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local fence = math.max(last + 1, now_ms, tonumber(ARGV[3]))
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. text, 'PX', ARGV[2])
return fence
"""

# KEYS: lease, commands of a node. ARGV: lease as the leader holds it, how many to keep, command.
_APPEND = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'command', ARGV[3])
return 1
"""

# KEYS: lease, record, incidents. ARGV: lease as the leader holds it, record, then id and incident in turn.
_SAVE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""

_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class LeadershipLostError(Exception):
    """A write was refused because another daemon leads, or the lease has lapsed."""


class RunStore:
    """Every method raises redis_client.StoreError or OSError while the store is away."""

    def __init__(self, client: redis.asyncio.Redis, run: str, daemon: str) -> None:
        self._client = client
        self._run = run
        self._daemon = daemon
        self._acquire = client.register_script(_ACQUIRE)
        self._append = client.register_script(_APPEND)
        self._save = client.register_script(_SAVE)
        self._release = client.register_script(_RELEASE)
        self.fence = 0
        """Of this daemon's lease; 0 while it does not lead."""

    async def acquire(self, lease_s: float, lowest_fence: int) -> bool:
        """Take or renew the lease with a fence of at least ``lowest_fence``; return whether we lead."""
        lease_keys = [keys.leader(self._run), keys.fence(self._run)]
        self.fence = int(await self._acquire(lease_keys, [self._daemon, int(lease_s * 1000), lowest_fence]))
        return self.fence > 0

    async def release(self) -> None:
        """Give the lease up, so that a standby need not wait for its end."""
        await self._release([keys.leader(self._run)], [self._lease])
        self.fence = 0

    @property
    def _lease(self) -> str:
        return f"{self._daemon} {self.fence}"

    def _check(self, written: Any) -> None:
        if not written:
            self.fence = 0
            raise LeadershipLostError(self._run)

    async def spec(self) -> store.RunSpec | None:
        """Return the run's spec, or None."""
        data = await self._get(keys.spec(self._run))
        return store.RunSpec.FromString(data) if data else None

    async def record(self) -> store.CoordinatorState | None:
        """Return what the last leader knew, or None."""
        data = await self._get(keys.state(self._run))
        return store.CoordinatorState.FromString(data) if data else None

    async def _get(self, key: str) -> bytes | None:
        data: bytes | None = await self._client.get(key)  # type: ignore[assignment]
        return data

    async def incidents(self) -> dict[str, store.Incident]:
        """Return all incidents by id."""
        entries: Any = await self._client.hgetall(keys.incidents(self._run))
        found = (store.Incident.FromString(data) for data in entries.values())
        return {incident.id: incident for incident in sorted(found, key=lambda incident: incident.id)}

    async def nodes(self) -> dict[str, store.NodeState]:
        """Return the state of every node whose lease is alive."""
        members: Any = await self._client.smembers(keys.nodes(self._run))
        names = sorted(name.decode() for name in members)
        if not names:
            return {}
        states: Any = await self._client.mget([keys.node(self._run, name) for name in names])
        return {name: store.NodeState.FromString(data) for name, data in zip(names, states, strict=True) if data}

    async def events(self, last_id: str, block_ms: int) -> tuple[str, list[store.Event]]:
        """Return events after ``last_id`` and the id of the last of them; waits up to ``block_ms`` for one."""
        answer: Any = await self._client.xread({keys.events(self._run): last_id}, count=EVENTS_PER_READ, block=block_ms)
        events = []
        for _, entries in answer or []:
            for entry_id, fields in entries:
                last_id = entry_id.decode()
                events.append(store.Event.FromString(fields[b"event"]))
        return last_id, events

    async def save(self, record: store.CoordinatorState, incidents: Iterable[store.Incident] = ()) -> None:
        """Replace the record and add or replace incidents, all or nothing.

        A record that names an incident, or an event as read, is never there without the incident. Raises
        LeadershipLostError if we do not lead.
        """
        run_keys = [keys.leader(self._run), keys.state(self._run), keys.incidents(self._run)]
        entries = [part for incident in incidents for part in (incident.id, incident.SerializeToString())]
        self._check(await self._save(run_keys, [self._lease, record.SerializeToString(), *entries]))

    async def send(self, node: str, command: store.NodeCommand) -> None:
        """Append a command to a node's stream; raises LeadershipLostError if we do not lead."""
        run_keys = [keys.leader(self._run), keys.commands(self._run, node)]
        self._check(await self._append(run_keys, [self._lease, COMMANDS_KEPT, command.SerializeToString()]))

    async def retire(self, nodes: Iterable[str]) -> None:
        """Take an ended run off the list; what it leaves expires in a day, the commands of spare nodes included."""
        await self._client.srem(keys.RUNS, self._run)
        members: Any = await self._client.smembers(keys.nodes(self._run))
        named = {*nodes, *(name.decode(errors="replace") for name in members)}
        left = [
            make(self._run) for make in (keys.spec, keys.state, keys.events, keys.incidents, keys.nodes, keys.fence)
        ]
        for key in (*left, *(keys.commands(self._run, node) for node in sorted(named))):
            await self._client.expire(key, ENDED_RUN_TTL_S)
