"""The records and the world of a run's torchruns in Redis.

All values are sealed. What is not signed with the run's key, or holds what it cannot hold, counts as absent. Redis
itself cannot sign. So a node reads the world, decides, and writes a new one only if Redis still holds what it has read.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast_proto import keys
from holdfast_proto.checks.message_checker import MessageChecker
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.run_key import ForgedError, Opened, Seal
from holdfast_proto.v1.meeting_pb2 import MeetingMember, MeetingRecord, MeetingWorld
from holdfast_torchrun.meeting import LEASE_S, Sight

if TYPE_CHECKING:
    import redis

MOST_NODES = 131072
"""Largest number of records that are read: others may fill Redis."""
_HEAD_BYTES = 32
"""First bytes of a sealed value, with its signature."""
_ALL = "*"
"""Reads the records of all nodes. No node has this name."""
KEEP_MS = 3_600_000
"""Time after which Redis forgets a run whose nodes are gone."""

# KEYS: records, world, bell. ARGV: node, its record, the bell as it was read, a new bell or '', most records, time to
# live in ms, the head of the world as it was read, and the nodes to read ('*': all). Returns the world, the bell, the
# server's time and the records of those nodes and of the one that has rung since. A world with that head is nil: its
# head signs all of it.
EXCHANGE = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if ARGV[4] ~= '' then redis.call('SET', KEYS[3], ARGV[4]) end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[6]) end
local bell = redis.call('GET', KEYS[3]) or ''
local records = {}
if ARGV[8] == '*' then
  if redis.call('HLEN', KEYS[1]) <= tonumber(ARGV[5]) then records = redis.call('HGETALL', KEYS[1]) end
else
  local nodes = {unpack(ARGV, 8)}
  if bell ~= ARGV[3] then table.insert(nodes, string.match(bell, '^%S+')) end
  for _, node in ipairs(nodes) do
    local record = redis.call('HGET', KEYS[1], node)
    if record then table.insert(records, node); table.insert(records, record) end
  end
end
local is_known = ARGV[7] ~= '' and redis.call('GETRANGE', KEYS[2], 0, #ARGV[7] - 1) == ARGV[7]
local world = not is_known and (redis.call('GET', KEYS[2]) or '')
return {world, bell, redis.call('TIME'), records}
"""

# KEYS: world. ARGV: the world as it was read, as it becomes, time to live in ms.
REPLACE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""

# KEYS: records. ARGV: node, its record as it was read, as it becomes.
CLAIM = """
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""

_Value = TypeVar("_Value", MeetingRecord, MeetingWorld)


def _check_node(message: MeetingRecord | MeetingMember) -> None:
    if not keys.RUN_NAME.fullmatch(message.node):
        raise RefusedError(f"node is {message.node[:80]!r}: a name of up to 63 letters and digits is expected")


class MeetingStore:
    """What one torchrun reads and writes. Every method raises redis.RedisError if Redis cannot be used."""

    def __init__(self, client: "redis.Redis", run: str, seal: Seal) -> None:
        self._client: Any = client  # redis-py types its answers for the asynchronous client too
        self._records, self._world, self._bell = (
            keys.meeting_records(run),
            keys.meeting_world(run),
            keys.meeting_bell(run),
        )
        self._seal = seal
        self._checker = MessageChecker(MOST_RANKS, {"MeetingRecord": _check_node, "MeetingMember": _check_node})
        self._exchange = client.register_script(EXCHANGE)
        self._replace = client.register_script(REPLACE)
        self._claim = client.register_script(CLAIM)
        self._lead_s: float | None = None
        """Time of Redis less this process's monotonic time: leases do not depend on the clocks of the nodes."""
        self._heard_bell = b""
        self._last = Sight(None, b"", {}, is_whole=False)

    def claim(self, record: MeetingRecord) -> bool:
        """Take the name of a node; return whether no other torchrun that is alive has it."""
        self._set_clock(self._client.time())
        held = self._client.hget(self._records, record.node) or b""
        others = self._fresh([record.node.encode(), held])
        if any(other.process != record.process for other in others.values()):
            return False
        record.written_unix_s = self._now_s()
        return bool(self._claim([self._records], [record.node, held, self._sealed(record)]))

    def exchange(self, record: MeetingRecord, *, ring: str = "", nodes: Sequence[str] | None = None) -> Sight:
        """Write the record of this node and return what Redis holds.

        ``nodes``: whose records are read; None: those of all. ``ring``: a new text that begins with the name of this
        node makes all others read its record, too. What was read before stays in sight as long as the world does.
        """
        if self._lead_s is None:
            self._set_clock(self._client.time())
        record.written_unix_s = self._now_s()
        known = self._last
        head = known.stored[:_HEAD_BYTES]
        arguments: list[bytes | str | int] = [record.node, self._sealed(record), self._heard_bell, ring]
        arguments += [MOST_NODES, KEEP_MS, head, *([_ALL] if nodes is None else nodes)]
        stored, bell, clock, found = self._exchange([self._records, self._world, self._bell], arguments)
        self._set_clock(clock)
        if stored is not None and stored != known.stored:
            known = Sight(self._read_world(stored), stored, {})
        has_rung = bell != self._heard_bell
        # This node is there, also if it was stopped for the time of a lease before Redis answered.
        records = {**self._fresh(found), record.node: record}
        is_whole = nodes is None and bool(found)  # at least this node's own, unless there are too many
        if not is_whole:
            read = {*(nodes or ()), bell.partition(b" ")[0].decode(errors="replace") if has_rung else ""}
            records = {node: one for node, one in known.records.items() if node not in read} | records
        self._heard_bell = bell
        self._last = replace(known, records=records, is_whole=is_whole, has_rung=has_rung)
        return self._last

    def replace(self, stored: bytes, world: MeetingWorld) -> bool:
        """Write a world if Redis still holds what was read before; return whether it did."""
        sealed = self._seal.close(self._world, world.SerializeToString(), world.round)
        return bool(self._replace([self._world], [stored, sealed, KEEP_MS]))

    def remove(self, node: str) -> None:
        """Remove the record of a node."""
        self._client.hdel(self._records, node)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _set_clock(self, clock: Sequence[Any]) -> None:
        self._lead_s = int(clock[0]) + int(clock[1]) / 1e6 - time.monotonic()

    def _now_s(self) -> float:
        return time.monotonic() + (self._lead_s or 0.0)

    def _sealed(self, record: MeetingRecord) -> bytes:
        number = int(record.written_unix_s * 1e6)
        return self._seal.close(f"{self._records} {record.node}", record.SerializeToString(), number)

    def _fresh(self, found: Sequence[bytes]) -> dict[str, MeetingRecord]:
        """Return the records of the nodes that are alive. One that others have kept and written again is old."""
        now_s = self._now_s()
        records = {}
        for field, value in zip(found[::2], found[1::2], strict=True):
            node = field.decode(errors="replace")
            record = self._open(f"{self._records} {node}", value, MeetingRecord.FromString)
            if record is not None and record.node == node and abs(now_s - record.written_unix_s) < LEASE_S:
                records[node] = record
        return records

    def _read_world(self, stored: bytes) -> MeetingWorld | None:
        return self._open(self._world, stored, MeetingWorld.FromString) if stored else None

    def _open(self, place: str, value: bytes, parse: Callable[[bytes], _Value]) -> _Value | None:
        try:
            opened: Opened = self._seal.open(place, value)
            message = parse(opened.content)
            self._check(message)
        except (ForgedError, DecodeError, RefusedError):
            return None
        return message

    def _check(self, message: Message) -> None:
        self._checker.check(message)
