"""Reads a stream of the store so that nothing new is missed and nothing is read twice, whatever happens to the server.

The ids of a stream are times of the server. A server that comes back empty, or a replica that becomes the master, may
give smaller ids than those that were read before. XREAD after the old id would then return nothing, perhaps forever.
So each read looks first where the stream ends. After a failure, or if the stream ends before what was read, it is read
again from an older id, and entries that are known are left out.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import redis.asyncio

Entry = tuple[str, Mapping[bytes, bytes]]

IDS_KEPT = 20_000
"""Newest ids that a reader remembers. A replica lags behind its master by fewer entries than that: a thousand nodes add
as many in 20 s."""

BEGINNING = "0-0"

# KEYS: stream. ARGV: id, most entries.
# Returns the id of the newest entry that was ever added, the numbers of entries ever added (-1: an old server does not
# say) and present, the id of the first one, and the entries after ARGV[1].
LOOK = """
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
  if string.find(info.err, 'no such key') then return {'0-0', 0, 0, '0-0', {}} end
  return info
end
local value = {}
for i = 1, #info, 2 do value[info[i]] = info[i + 1] end
local first = '0-0'
if value['first-entry'] then first = value['first-entry'][1] end
-- Nothing can follow the largest id of all, and Redis refuses the question. Somebody may have added an entry with it.
local entries = redis.pcall('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
if entries.err then entries = {} end
return {value['last-generated-id'], value['entries-added'] or -1, value['length'], first, entries}
"""


def _mark(entry: Entry) -> tuple[str, int]:
    """Return what tells an entry from another one: a server whose clock was behind may give an id again."""
    entry_id, fields = entry
    return entry_id, hash(tuple(sorted(fields.items())))


def order_of(entry_id: str) -> tuple[int, int]:
    """Return what ids are compared by."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds or 0), int(number or 0)


@dataclass(frozen=True)
class StreamLook:
    """What the stream was like at one moment."""

    newest_id: str
    added: int
    """Number of entries ever added; -1: unknown."""
    first_id: str
    removed: int
    """Number of entries that the stream no longer has."""
    entries: list[Entry]


@dataclass(frozen=True)
class StreamPosition:
    """How far a reader is."""

    known: tuple[str, ...]
    """Ids of the newest entries that were read from this stream, oldest first; never empty."""
    index: int | None
    """Number of entries that had been added to the stream up to the last one; None: unknown."""

    @property
    def last_id(self) -> str:
        """Id after which reading continues."""
        return self.known[-1]

    def after(self, entries: list[Entry]) -> "StreamPosition":
        """Return the position after the next entries."""
        if not entries:
            return self
        known = (*self.known, *(entry_id for entry_id, _ in entries))[-IDS_KEPT:]
        return StreamPosition(known, None if self.index is None else self.index + len(entries))


@dataclass(frozen=True)
class StreamBatch:
    """What one read returns."""

    last_id: str
    """Id to give to the next read, once the entries are dealt with."""
    entries: list[Entry] = field(default_factory=list)
    missed: int = 0
    """Number of entries that were removed before they were read; -1: some, and it is unknown how many."""
    has_lost: bool = False
    """Whether entries that were read are no longer there: the server has lost its newest data, or all of it."""


class StreamReader:
    """Reads one stream. The caller names the id up to which it has dealt with entries, and may go back to it."""

    def __init__(self, client: redis.asyncio.Redis, key: str) -> None:
        self._client = client
        self._key = key
        self._look = client.register_script(LOOK)
        self._position = StreamPosition((BEGINNING,), 0)
        self._next: StreamPosition | None = None
        """StreamPosition after the last read, which the caller has not confirmed yet."""
        self._is_doubted = False
        """Whether the server may be another one than at the last read."""
        self._dealt_with: deque[tuple[str, int]] = deque(maxlen=IDS_KEPT)
        """Marks of the newest entries that the caller has dealt with, also of lost data: it may come back."""
        self._given: list[Entry] = []
        """Entries of the last read."""
        self._has_ever_lost = False

    async def read(self, last_id: str, *, most: int, block_ms: int) -> StreamBatch:
        """Return the entries after ``last_id``; wait up to ``block_ms`` for one. Raises as the client does."""
        self._confirm(last_id)
        try:
            batch = await self._read(most, block_ms)
        except BaseException:
            self._is_doubted = True
            raise
        self._has_ever_lost |= batch.has_lost
        self._given = batch.entries if not self._has_ever_lost else self._new_of(batch.entries)
        return replace(batch, entries=self._given)

    def _new_of(self, entries: list[Entry]) -> list[Entry]:
        known = set(self._dealt_with)
        return [entry for entry in entries if _mark(entry) not in known]

    def _confirm(self, last_id: str) -> None:
        if self._next is not None and self._next.last_id == last_id:
            self._position = self._next
            self._dealt_with.extend(map(_mark, self._given))
        elif self._position.last_id != last_id:
            is_beginning = order_of(last_id) == (0, 0)
            self._position = StreamPosition((BEGINNING,), 0) if is_beginning else StreamPosition((last_id,), None)
        self._next, self._given = None, []

    async def _read(self, most: int, block_ms: int) -> StreamBatch:
        look = await self._look_after(self._position.last_id, most)
        has_lost = order_of(look.newest_id) < order_of(self._position.last_id)
        if has_lost or self._is_doubted:
            batch = await self._read_again(look, most, has_lost=has_lost)
        else:
            batch = self._advance(look, most)
        if batch.entries or batch.missed or batch.has_lost:
            return batch
        assert self._next is not None
        answer: Any = await self._client.xread({self._key: batch.last_id}, count=most, block=block_ms)
        entries = [(entry_id.decode(), fields) for _, found in answer or [] for entry_id, fields in found]
        self._next = self._next.after(entries)
        return StreamBatch(self._next.last_id, entries)

    def _advance(self, look: StreamLook, most: int) -> StreamBatch:
        missed = self._missed(look)
        index = self._position.index if missed == 0 else look.removed
        self._next = StreamPosition(self._position.known, index).after(look.entries)
        if len(look.entries) < most and look.added >= 0:
            self._next = StreamPosition(self._next.known, look.added)
        return StreamBatch(self._next.last_id, look.entries, missed)

    async def _read_again(self, look: StreamLook, most: int, *, has_lost: bool) -> StreamBatch:
        """Read from the oldest known entry that may be there, and leave out those that are known."""
        missed = 0 if has_lost else self._missed(look)
        start = self._position.known[0]
        if order_of(start) > order_of(look.newest_id):
            start = BEGINNING
        position = StreamPosition((start,), None)
        new: list[Entry] = []
        while not new:
            look = await self._look_after(position.last_id, most)
            position = position.after(look.entries)
            new = self._new_of(look.entries)
            if len(look.entries) < most:
                # All is read. From here on, the number of entries tells how many are missed.
                position = StreamPosition(position.known, look.added if look.added >= 0 else None)
                break
        self._next, self._is_doubted = position, False
        return StreamBatch(position.last_id, new, missed, has_lost)

    def _missed(self, look: StreamLook) -> int:
        if order_of(look.first_id) <= order_of(self._position.last_id) or look.removed <= 0:
            return 0
        index = self._position.index
        return -1 if index is None else max(0, look.removed - index)

    async def _look_after(self, last_id: str, most: int) -> StreamLook:
        newest, added, length, first, found = await self._look([self._key], [last_id, most])
        entries: list[Entry] = [
            (entry_id.decode(), dict(zip(fields[::2], fields[1::2], strict=True))) for entry_id, fields in found or []
        ]
        removed = added - length if added >= 0 else 0
        return StreamLook(newest.decode(), added, first.decode(), removed, entries)
