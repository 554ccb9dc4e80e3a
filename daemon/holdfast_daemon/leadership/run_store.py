"""One run in Redis, as a daemon reads it and, while it leads, writes it."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import ResponseError

from holdfast_base.stream_reader import StreamBatch, StreamReader
from holdfast_daemon.leadership.run_lease import RunLease
from holdfast_daemon.validation.intake import Intake
from holdfast_daemon.validation.refused_values import EventNumbers
from holdfast_proto import keys
from holdfast_proto.run_key import Numbers, RunKeyFile
from holdfast_proto.v1 import store_pb2 as store

EVENTS_PER_READ = 512
COMMANDS_KEPT = 1000
ENDED_RUN_TTL_S = 86_400

# KEYS: lease, commands of a node. ARGV: lease as the leader holds it, how many to keep, command.
_APPEND = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'command', ARGV[3])
return 1
"""

# KEYS: lease, record, incidents. ARGV: lease as the leader holds it, record, then id and incident in turn. An empty
# incident is removed.
_SAVE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[3], ARGV[i])
  else redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""


_NUMBERS = Numbers()
"""Those of all values of this process: a shell that replaces one that has failed may get the same lease."""
_JUNK = b"\xff"
"""No message parses from this."""


def holds_another_type(error: Exception) -> bool:
    """Return whether an operation failed because a key holds another type of value than Holdfast keeps there."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


class LeadershipLostError(Exception):
    """A write was refused because another daemon leads, or the lease has ended."""


class RunStore:
    """The keys of one run. Every method raises redis_client.StoreError or OSError while the store is unreachable.

    Values are checked before they are returned. A bad value is refused alone: see :class:`Intake`.
    """

    def __init__(self, client: redis.asyncio.Redis, run: str, daemon: str, key_file: RunKeyFile) -> None:
        self._client = client
        self._run = run
        self._key_file = key_file
        self.intake = Intake(run, key_file.read().seal_of(""))  # until serve() is called, nothing is valid
        self._instance = ""
        """RunSpec.instance of the start that is read and written; empty: none yet."""
        self.record_is_bad = False
        """Whether the store held a record at the last reading, and it was refused."""
        self._node_names: set[str] = set()
        """Names of all nodes that have ever reported."""
        self._events = StreamReader(client, keys.events(run))
        self._append = client.register_script(_APPEND)
        self._save = client.register_script(_SAVE)
        self.lease = RunLease(client, run, daemon, key_file, self.intake.refusals)

    def _check(self, written: object) -> None:
        if not written:
            self.lease.fence = 0
            raise LeadershipLostError(self._run)

    async def spec(self) -> store.RunSpec | None:
        """Return the run's spec, or None if there is none that is good. What is read next is of the same start."""
        data = await self._get(keys.spec(self._run))
        spec = self.intake.spec(data, self._key_file.read().seal) if data else None
        if spec is not None:
            self.serve(spec.instance)
        return spec

    def serve(self, instance: str) -> None:
        """Read and write values of one start of the run from now on."""
        if instance != self._instance:  # a key that was replaced since then is that of another start
            self._instance = instance
            self.intake.serve(self._key_file.read().seal_of(instance))

    async def record(self) -> store.CoordinatorState | None:
        """Return what the last leader knew, or None if there is no record that is good."""
        data = await self._get(keys.state(self._run))
        record = self.intake.record(data) if data else None
        self.record_is_bad = record is None and data is not None
        return record

    async def _get(self, key: str) -> bytes | None:
        """Return what a key holds. A key of another type counts as one whose value cannot be parsed."""
        try:
            data: bytes | None = await self._client.get(key)  # type: ignore[assignment]
        except ResponseError as error:
            if not holds_another_type(error):
                raise
            return _JUNK
        return data

    async def incidents(self) -> dict[str, store.Incident]:
        """Return all good incidents by id."""
        entries: Any = await self._client.hgetall(keys.incidents(self._run))
        return self.intake.incidents(entries)

    async def nodes(self, spec: store.RunSpec | None = None, members: Sequence[str] = ()) -> dict[str, store.NodeState]:
        """Return the state of every node whose lease is alive.

        Args:
            spec: of the run, if it is known.
            members: nodes of the run in rank order, if that is decided.
        """
        names = await self._names()
        if not names:
            return {}
        states: Any = await self._client.mget([keys.node(self._run, name) for name in names])
        found: dict[str, bytes | None] = {name: data for name, data in zip(names, states, strict=True) if data}
        for name in self.intake.held_nodes() - found.keys():
            # MGET shows a key of another type as none: such a node is not gone.
            kind: Any = await self._client.type(keys.node(self._run, name))
            if kind not in (b"none", b"string"):
                found[name] = None
        return self.intake.nodes(found, spec, members)

    async def _names(self) -> list[str]:
        members: Any = await self._client.smembers(keys.nodes(self._run))
        names = self.intake.node_names(members)
        self._node_names.update(names)
        return names

    async def events(
        self, record: store.CoordinatorState, block_ms: int, spec: store.RunSpec | None = None
    ) -> tuple[StreamBatch, list[store.Event], dict[str, int]]:
        """Return what was read after the events that a record has taken in, its good events, and their numbers.

        The numbers are the newest by sender, as in the record: older ones than those are left out. Waits up to
        ``block_ms`` for an event.
        """
        last_id = record.last_event_id or "0"
        try:
            batch = await self._events.read(last_id, most=EVENTS_PER_READ, block_ms=block_ms)
        except ResponseError as error:
            if not holds_another_type(error):
                raise
            self.intake.refusals.add("key", keys.events(self._run), error, "the run is led without events")
            await asyncio.sleep(block_ms / 1000)
            return StreamBatch(last_id), [], {}
        numbers = EventNumbers(record.event_numbers)
        found = (self.intake.event(fields.get(b"event"), spec, numbers) for _, fields in batch.entries)
        return batch, await self._of_known_nodes([event for event in found if event is not None]), numbers.newest

    async def newest_event_id(self) -> str:
        """Return the id of the newest event; empty: there is none."""
        try:
            newest: Any = await self._client.xrevrange(keys.events(self._run), count=1)
        except ResponseError as error:
            if not holds_another_type(error):
                raise
            return ""
        return newest[0][0].decode() if newest else ""

    async def _of_known_nodes(self, events: list[store.Event]) -> list[store.Event]:
        """Return the events of nodes that have ever reported: events of other names are refused."""
        if not self._node_names.issuperset(event.node for event in events):
            await self._names()
        for event in events:
            if event.node not in self._node_names:
                self.intake.refusals.add("event", "an event", f"no node of the run is called {event.node[:80]!r}")
        return [event for event in events if event.node in self._node_names]

    async def save(
        self,
        record: store.CoordinatorState,
        incidents: Iterable[store.Incident] = (),
        forgotten: Iterable[str] = (),
    ) -> None:
        """Replace the record, add or replace incidents and remove ``forgotten`` ones, all or nothing.

        A record that names an incident, or an event as read, is never there without the incident. Raises
        LeadershipLostError if we do not lead.
        """
        run_keys = [keys.leader(self._run), keys.state(self._run), keys.incidents(self._run)]
        numbered = _NUMBERS.next()

        def sealed(place: str, message: store.CoordinatorState | store.Incident) -> bytes:
            return self.intake.seal.close(place, message.SerializeToString(), numbered)

        entries = [
            part
            for incident in incidents
            for part in (incident.id, sealed(keys.incident(self._run, incident.id), incident))
        ]
        entries += [part for name in forgotten for part in (name, b"")]  # last: a forgotten one may also have changed
        self._check(await self._save(run_keys, [self.lease.value, sealed(run_keys[1], record), *entries]))

    async def send(self, node: str, command: store.NodeCommand) -> None:
        """Append a command to a node's stream; raises LeadershipLostError if we do not lead.

        A stream whose key holds another type takes no commands. The other nodes get theirs all the same.
        """
        run_keys = [keys.leader(self._run), keys.commands(self._run, node)]
        sealed = self.intake.seal.close(run_keys[1], command.SerializeToString(), _NUMBERS.next())
        try:
            self._check(await self._append(run_keys, [self.lease.value, COMMANDS_KEPT, sealed]))
        except ResponseError as error:
            if not holds_another_type(error):
                raise
            self.intake.refusals.add("key", run_keys[1], error, f"node {node} gets no commands: delete the key")

    async def retire(self, nodes: Iterable[str]) -> None:
        """Take an ended run off the list. Its keys expire in a day, also those with the commands of spares."""
        await self._client.srem(keys.RUNS, self._run)
        members: Any = await self._client.smembers(keys.nodes(self._run))
        named = {*nodes, *(name.decode(errors="replace") for name in members)}
        left = [
            make(self._run) for make in (keys.spec, keys.state, keys.events, keys.incidents, keys.nodes, keys.fence)
        ]
        for key in (*left, *(keys.commands(self._run, node) for node in sorted(named))):
            await self._client.expire(key, ENDED_RUN_TTL_S)
