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
KEEP_MS = 3_600_000
"""Time after which Redis forgets a run whose nodes are gone."""

# KEYS: records, world, bell. ARGV: node, its record, the bell as it was read ('-' reads all records), a new bell or '',
# most records, time to live in ms, the head of the world as it was read. Returns the world, the bell, the server's time
# and the records. Without a new bell there are no records. A world with that head is nil: its head signs all of it.
EXCHANGE = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if ARGV[4] ~= '' then redis.call('SET', KEYS[3], ARGV[4]) end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[6]) end
local bell = redis.call('GET', KEYS[3]) or ''
local records = {}
if bell ~= ARGV[3] and redis.call('HLEN', KEYS[1]) <= tonumber(ARGV[5]) then
  records = redis.call('HGETALL', KEYS[1])
end
local world = redis.call('GET', KEYS[2]) or ''
if ARGV[7] ~= '' and string.sub(world, 1, #ARGV[7]) == ARGV[7] then world = false end
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
        self._last: Sight | None = None

    def claim(self, record: MeetingRecord) -> bool:
        """Take the name of a node; return whether no other torchrun that is alive has it."""
        self._set_clock(self._client.time())
        held = self._client.hget(self._records, record.node) or b""
        others = self._fresh([record.node.encode(), held])
        if any(other.process != record.process for other in others.values()):
            return False
        record.written_unix_s = self._now_s()
        return bool(self._claim([self._records], [record.node, held, self._sealed(record)]))

    def exchange(self, record: MeetingRecord, *, ring: str = "", sees_all: bool) -> Sight:
        """Write the record of this node and return what Redis holds.

        ``ring``: a text that no node has used before makes all others read the records. ``sees_all``: read them in any
        case. All nodes of a healthy run exchange, and none of them needs the records of the others.
        """
        if self._lead_s is None:
            self._set_clock(self._client.time())
        record.written_unix_s = self._now_s()
        known = None if sees_all else self._last
        # Redis says "" for a bell that is not there, so "-" stands for one that was not heard.
        heard, head = (self._heard_bell or b"-", known.stored[:_HEAD_BYTES]) if known else (b"-", b"")
        arguments: list[bytes | str | int] = [record.node, self._sealed(record), heard, ring, MOST_NODES, KEEP_MS, head]
        stored, bell, clock, found = self._exchange([self._records, self._world, self._bell], arguments)
        self._set_clock(clock)
        records = self._fresh(found) if found or self._last is None else dict(self._last.records)
        if stored is None and known is not None:
            self._last = replace(known, records=records)
        else:
            self._last = Sight(self._read_world(stored or b""), stored or b"", records)
        self._heard_bell = bell
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
