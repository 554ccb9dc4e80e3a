"""A store in memory, whose leases lapse by the clock of the running loop, for tests on virtual time.

It has the commands that daemons and agents use. ``tests/daemon/leadership/test_run_store.py`` holds it to what a real
server does.
"""

import asyncio
import collections
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import NoPermissionError

from holdfast_base import stream_reader
from holdfast_daemon.clock import Clock
from holdfast_daemon.leadership import run_lease, run_store
from tests.support.virtual_time import LoopClock

Entry = tuple[bytes, dict[bytes, bytes]]


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


class MemoryStore:
    """The data of one server, and its commands as a blocking client has them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or LoopClock()
        """Clock of the store, and of the daemons and agents that use it."""
        self.refused: set[str] = set()
        """Names of the commands that clients may not use."""
        self._is_up = True
        self._starts = 0
        self._values: dict[str, Any] = {}
        self._lapses_s: dict[str, float] = {}
        """Key -> time at which it lapses."""
        self._removed: collections.Counter[str] = collections.Counter()
        """Stream -> number of entries that were trimmed."""
        self._newest_id = 0
        self._written = asyncio.Event()
        """Set, and replaced, when something is written that a client may wait for."""

    def kill(self) -> None:
        """End the server as a crash would: all its data is gone."""
        self._is_up = False
        self._values.clear()
        self._lapses_s.clear()
        self._removed.clear()
        self._wake()

    def start(self) -> None:
        """Answer again, empty."""
        self._is_up = True
        self._starts += 1

    def turn_back(self) -> None:
        """Give streams smaller ids and leases smaller fences from now on, as a server whose clock is behind does."""
        self._newest_id, self._starts = 0, -10_000_000

    def check(self, command: str) -> None:
        """Raise the error of a client whose command fails."""
        if not self._is_up:
            raise Unreachable("the server is not there")
        if command in self.refused:
            raise NoPermissionError(f"this user has no permissions to run {command}")

    def connect(self) -> Any:
        """Return a client for a loop."""
        return _Client(self)

    @contextlib.contextmanager
    def client(self) -> Any:
        """Return a client that blocks."""
        yield self

    @property
    def written(self) -> asyncio.Event:
        """An event that is set with the next entry of a stream, and when the server ends."""
        return self._written

    def _wake(self) -> None:
        written, self._written = self._written, asyncio.Event()
        written.set()

    def _value(self, key: str, default: Any = None) -> Any:
        if self._lapses_s.get(key, math.inf) <= self.clock.now():
            self.delete(key)
        return self._values.get(key, default)

    def _container(self, key: str, kind: Callable[[], Any]) -> Any:
        self._value(key)
        return self._values.setdefault(key, kind())

    def get(self, key: str) -> bytes | None:
        value: bytes | None = self._value(key)
        return value

    def mget(self, names: Iterable[str]) -> list[bytes | None]:
        return [self.get(name) for name in names]

    def set(
        self, key: str, value: bytes | str, *, px: int | None = None, nx: bool = False, xx: bool = False
    ) -> bool | None:
        if (nx and self._value(key) is not None) or (xx and self._value(key) is None):
            return None
        self.delete(key)
        self._values[key] = _bytes(value)
        if px is not None:
            self.pexpire(key, px)
        return True

    def pexpire(self, key: str, ms: int) -> None:
        if self._value(key) is not None:
            self._lapses_s[key] = self.clock.now() + ms / 1000

    def expire(self, key: str, seconds: int) -> None:
        self.pexpire(key, seconds * 1000)

    def pttl(self, key: str) -> int:
        return int((self._lapses_s[key] - self.clock.now()) * 1000)

    def exists(self, key: str) -> int:
        return int(self._value(key) is not None)

    def type(self, key: str) -> bytes:
        return b"string" if isinstance(value := self._value(key), bytes) else b"none" if value is None else b"other"

    def delete(self, key: str) -> int:
        self._lapses_s.pop(key, None)
        return int(self._values.pop(key, None) is not None)

    def ttl(self, key: str) -> int:
        return self.pttl(key) // 1000

    def sadd(self, key: str, *members: str) -> None:
        self._container(key, set).update(map(_bytes, members))

    def srem(self, key: str, member: str) -> None:
        self._container(key, set).discard(_bytes(member))

    def smembers(self, key: str) -> frozenset[bytes]:
        return frozenset(self._value(key, ()))

    def hset(self, key: str, field: str, value: bytes) -> None:
        self._container(key, dict)[_bytes(field)] = value

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        return dict(self._value(key, {}))

    def xadd(self, key: str, fields: Mapping[str, bytes], **_: object) -> None:
        self._newest_id += 1
        entry = {_bytes(name): value for name, value in fields.items()}
        self._container(key, list).append((b"%d-0" % self._newest_id, entry))
        self._wake()

    def xtrim(self, key: str, maxlen: int) -> None:
        entries = self.xrange(key)
        self._removed[key] += max(len(entries) - maxlen, 0)
        self._values[key] = entries[-maxlen:]

    def entries_after(self, key: str, last_id: str) -> list[Entry]:
        """Return what a reader of a stream has not read yet."""
        last = int(last_id.partition("-")[0])
        return [entry for entry in self.xrange(key) if int(entry[0].partition(b"-")[0]) > last]

    def xrange(self, key: str) -> list[Entry]:
        return list(self._value(key, []))

    def xrevrange(self, key: str, count: int) -> list[Entry]:
        return self.xrange(key)[::-1][:count]

    # The scripts of RunStore.

    def look_at_lease(self, names: Sequence[str], _: Sequence[Any]) -> list[Any]:
        # A real server takes longer than 1 ms to start, and fences rely on that.
        now_ms = int(self.clock.now() * 1000) + self._starts
        return [self.get(names[0]) or b"", self.get(names[1]) or b"", now_ms]

    def take_lease(self, names: Sequence[str], arguments: Sequence[Any]) -> int:
        held, last, wanted, last_text, lease_ms = arguments
        if [self.get(name) or b"" for name in names] != [held, last]:
            return 0
        self.set(names[1], last_text)
        self.set(names[0], wanted, px=lease_ms)
        return 1

    def _is_held(self, names: Sequence[str], arguments: Sequence[Any]) -> bool:
        lease: str = arguments[0]
        return self.get(names[0]) == lease.encode()

    def append(self, names: Sequence[str], arguments: Sequence[Any]) -> int:
        if not self._is_held(names, arguments):
            return 0
        self.xadd(names[1], {"command": arguments[2]})
        return 1

    def save(self, names: Sequence[str], arguments: Sequence[Any]) -> int:
        if not self._is_held(names, arguments):
            return 0
        for field, value in zip(arguments[2::2], arguments[3::2], strict=True):
            if value:
                self.hset(names[2], field, value)
            else:
                self._container(names[2], dict).pop(_bytes(field), None)
        self.set(names[1], arguments[1])
        return 1

    # The script of StreamReader.

    def look(self, names: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        entries, (last_id, most) = self.xrange(names[0]), arguments
        after = [
            (entry_id, [part for pair in fields.items() for part in pair])
            for entry_id, fields in self.entries_after(names[0], last_id)
        ]
        newest, first = (entries[-1][0], entries[0][0]) if entries else (b"0-0", b"0-0")
        return [newest, len(entries) + self._removed[names[0]], len(entries), first, after[:most]]

    def release(self, names: Sequence[str], arguments: Sequence[Any]) -> int:
        return self.delete(names[0]) if self._is_held(names, arguments) else 0


class _Client:
    """A client for a loop. Other tasks run before a command and before its answer, as with a real one."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        command = getattr(self._store, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            self._store.check(name)
            answer = command(*arguments, **options)
            await asyncio.sleep(0)
            return answer

        return call

    def register_script(self, text: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        scripts = {
            run_lease.LOOK: "look_at_lease",
            run_lease.TAKE: "take_lease",
            run_store._APPEND: "append",
            run_store._SAVE: "save",
            run_lease.RELEASE: "release",
            stream_reader.LOOK: "look",
        }
        run = self.__getattr__(scripts[text])
        return lambda names, arguments=(): run(names, arguments)

    async def xread(self, streams: Mapping[str, str], count: int | None, block: int) -> list[tuple[bytes, list[Entry]]]:
        ends_s = asyncio.get_running_loop().time() + block / 1000
        while True:
            await asyncio.sleep(0)
            self._store.check("xread")
            found = [(_bytes(key), self._store.entries_after(key, last)[:count]) for key, last in streams.items()]
            found = [(key, entries) for key, entries in found if entries]
            if found or asyncio.get_running_loop().time() >= ends_s:
                return found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends_s):
                    await self._store.written.wait()

    def pipeline(self, *, transaction: bool) -> "_Pipeline":
        return _Pipeline(self)

    async def aclose(self) -> None:
        """Nothing is open."""


class _Pipeline:
    """Commands that are sent together."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self._calls: list[Callable[[], Coroutine[Any, Any, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        command = getattr(self._client, name)
        return lambda *arguments, **options: self._calls.append(lambda: command(*arguments, **options))

    async def execute(self) -> list[Any]:
        return [await call() for call in self._calls]
