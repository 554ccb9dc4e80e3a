"""The agent's side of Redis: publishes state and events, receives commands, and survives outages."""

import asyncio
import collections
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import redis.asyncio
from google.protobuf.message import DecodeError

from holdfast_base.redis_client import StoreError, StoreOutage
from holdfast_base.stream_reader import StreamReader
from holdfast_proto import keys
from holdfast_proto.run_key import ForgedError, Numbers, RunKeyError, RunKeyFile, Seal
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import store_pb2 as store

STATE_TTL_MS = 3800
"""Time to live of the node's state, the agent's lease: without a newer state the node then counts as gone. A state may
be a second old when an agent is held up, and must outlive almost three seconds of that."""

EVENTS_KEPT = 10_000
"""Most events in this process while the store is unreachable, and in the stream of a small run."""

EVENTS_PER_NODE = 60
"""Most events of a node in the stream of a large run, on average. Each node sends one with each step, so that a leader
can be away for a minute when a step takes a second."""

BLOCK_MS = 1000
"""Longest wait of one read of commands; must be shorter than the client's timeout."""

REGISTER_EVERY_S = 10.0
"""Time after which the keys that stay are written again: a store may lose single ones. With each state, they would be
most of what a node sends."""

RETRY_S = 0.2

_LISTING_S = 1.0
"""Longest wait for the list of runs."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")
CommandHandler = Callable[[store.NodeCommand, int, str], Awaitable[None]]
"""Called with a command, its number and its stream id."""
RefusalHandler = Callable[[str, str], None]
"""Called with the stream id of an entry that is no command, and the reason."""


def most_events(spec: store.RunSpec) -> int:
    """Return how many events the stream of a run keeps at least."""
    return max(EVENTS_KEPT, EVENTS_PER_NODE * spec.nodes)


class StoreLink:
    """All traffic between one agent and Redis. No method raises because the store is unreachable."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        run: str,
        node: str,
        outage: StoreOutage,
        key_file: RunKeyFile,
        *,
        state_ttl_ms: int = STATE_TTL_MS,
    ) -> None:
        self._client = client
        self._state_ttl_ms = state_ttl_ms
        self._run, self._node = run, node
        self._key_file = key_file
        self._seal: Seal
        self._signed_spec = b""
        self._numbers = Numbers()
        self.spec_problem = ""
        """Why the spec that the store has is not taken; empty: it is, or there is none."""
        self._events: collections.deque[bytes] = collections.deque()
        """Events that are not sent yet, sealed."""
        self._events_waiting = asyncio.Event()
        self._outage = outage
        self._events_in_stream = EVENTS_KEPT
        """Most events in the run's stream."""
        self._registered_until_s = -math.inf
        """Monotonic time at which the keys that stay are written again, although the store seems to have them."""
        self._listed_until_s = -math.inf
        """Monotonic time at which the run is added again to the list of runs."""
        self._listing: asyncio.Task[None] | None = None
        """Adds it, or has done so."""
        self.up = False
        self.operations_total = 0
        self.failures_total = 0
        self._stored_at_failure = -1
        """Failures that there had been when the store took the newest state."""
        self.events_dropped_total = 0

    @property
    def holds_state(self) -> bool:
        """Whether the store has taken the newest state, and no operation has failed since: it may have lost it then."""
        return self._stored_at_failure == self.failures_total

    async def _try(self, operation: Awaitable[Result]) -> Result | None:
        """Return the result of a store operation; None, and count it, if the store is unreachable."""
        self.operations_total += 1
        try:
            result = await operation
        except (StoreError, OSError) as error:
            self.failures_total += 1
            self.up = False
            self._outage.failed(error)
            return None
        self.up = True
        self._outage.answered()
        return result

    async def load_spec(self) -> store.RunSpec | None:
        """Return the run's spec, or None if there is none that is signed with its key, or the store is unreachable."""
        data: Any = await self._try(self._client.get(keys.spec(self._run)))
        self.spec_problem = ""
        try:
            content = self._key_file.read().seal.open(keys.spec(self._run), data).content if data else None
            return store.RunSpec.FromString(content) if content is not None else None
        except ForgedError as error:
            self.spec_problem = (
                f"run {self._run} in Redis cannot be trusted: {error} in {self._key_file.path}: copy the key with which"
                " it was published, or publish it again"
            )
        except RunKeyError as error:
            self.spec_problem = str(error)
        except DecodeError:
            self.spec_problem = f"run {self._run} in Redis is damaged: publish it again"
        return None

    async def now_ns(self) -> int:
        """Return the time by the clock of the store, which all nodes share; 0: it is unreachable."""
        answer: Any = await self._try(self._client.time())
        return int(answer[0] * 10**9 + answer[1] * 1000) if answer else 0

    def serve(self, spec: store.RunSpec, now_ns: int = 0, earlier_numbers: int = 0) -> int:
        """Read and write values of this start of the run from now on. Raises RunKeyError.

        ``now_ns``: from :meth:`now_ns`. A node may come back without its record, and with its clock behind.
        ``earlier_numbers``: what this has returned to the agent before this one. Return the start of the numbers.
        """
        key = self._key_file.read()
        self._seal = key.seal_of(spec.instance)
        self._signed_spec = key.seal.close(keys.spec(self._run), spec.SerializeToString())
        self._events_in_stream = most_events(spec)  # the first events may be sent before the first state
        self._numbers = Numbers(now_ns, earlier_start=earlier_numbers)
        return self._numbers.start

    async def publish_state(self, state: store.NodeState) -> None:
        """Replace this node's state, and restore the keys that an emptied store has lost."""
        key, now_s = keys.node(self._run, self._node), time.monotonic()
        value = self._seal.close(key, write_state(state), self._numbers.next())
        failures = self.failures_total  # one that comes during this may mean that the server is another one by now
        if now_s < self._registered_until_s:
            # An emptied store has lost this key, too. It is not set then, and all are restored together.
            is_set = await self._try(self._client.set(key, value, px=self._state_ttl_ms, xx=True))
            self._keep_listed(now_s)
            if is_set:
                self._stored_at_failure = failures
            if is_set or not self.up:
                return
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(key, value, px=self._state_ttl_ms)
        pipeline.sadd(keys.nodes(self._run), self._node)
        pipeline.set(keys.spec(self._run), self._signed_spec, nx=True)
        if await self._try(pipeline.execute()) is not None:
            self._stored_at_failure = failures
            self._registered_until_s = now_s + REGISTER_EVERY_S
            self._listed_until_s = -math.inf
            self._keep_listed(now_s)

    def _keep_listed(self, now_s: float) -> None:
        """Have the run added to the list of runs if that is due. Nothing waits for it.

        In a cluster, another server than that of the run may hold the list. If it hangs, a client waits for a minute.
        """
        if now_s >= self._listed_until_s and (self._listing is None or self._listing.done()):
            self._listing = asyncio.create_task(self._list_run())

    async def _list_run(self) -> None:
        with contextlib.suppress(StoreError, OSError):  # the next state tries again
            async with asyncio.timeout(_LISTING_S):  # before the client's own: that has it ask all servers anew
                await self._client.sadd(keys.RUNS, self._run)
            self._listed_until_s = time.monotonic() + REGISTER_EVERY_S

    async def withdraw(self) -> None:
        """Remove this node's state: the agent leaves and will not return."""
        await self._try(self._client.delete(keys.node(self._run, self._node)))

    async def has_leader(self) -> bool | None:
        """Return whether a daemon leads the run; None if the store is unreachable."""
        key = keys.leader(self._run)
        failures = self.failures_total
        lease: Any = await self._try(self._client.get(key))
        if self.failures_total > failures:
            return None
        with contextlib.suppress(ForgedError, RunKeyError):
            return bool(lease and self._key_file.read().seal.read_text(key, lease))
        return False

    async def publish_rendezvous(self, generation: int, address: str) -> bool:
        """Publish the address of a generation's rendezvous store; return False if the store is unreachable."""
        key = keys.rendezvous(self._run, generation)
        return bool(await self._try(self._client.set(key, self._seal.close(key, address.encode()), ex=3600)))

    async def find_rendezvous(self, generation: int, patience_s: float) -> str | None:
        """Return the address of a generation's rendezvous store; None if it is not published in ``patience_s``."""
        deadline, key = time.monotonic() + patience_s, keys.rendezvous(self._run, generation)
        while time.monotonic() < deadline:
            address: Any = await self._try(self._client.get(key))
            with contextlib.suppress(ForgedError):  # ranks connect to it: it must be that of a node of the run
                if address:
                    return self._seal.open(key, address).content.decode(errors="replace")
            await asyncio.sleep(0.05)
        return None

    def emit(self, event: store.Event) -> None:
        """Queue an event for the daemon. If the queue is full, the oldest event is dropped and counted."""
        event.node = self._node
        event.unix_s = event.unix_s or time.time()
        if len(self._events) >= EVENTS_KEPT:
            self._events.popleft()
            self.events_dropped_total += 1
        # It is sealed once: if an outage makes the agent send it twice, the daemon sees that it is the same.
        self._events.append(self._seal.close(keys.events(self._run), event.SerializeToString(), self._numbers.next()))
        self._events_waiting.set()

    async def flush(self, patience_s: float) -> None:
        """Wait until all events are sent, but not longer than ``patience_s``."""
        deadline = time.monotonic() + patience_s
        while self._events and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def send_events(self) -> None:
        """Send queued events in order, forever."""
        while True:
            await self._events_waiting.wait()
            self._events_waiting.clear()
            while self._events:
                batch = list(itertools.islice(self._events, 256))
                dropped_before = self.events_dropped_total
                pipeline = self._client.pipeline(transaction=False)
                if time.monotonic() >= self._registered_until_s:  # events of a node that is not listed are refused
                    pipeline.sadd(keys.nodes(self._run), self._node)
                for event in batch:
                    pipeline.xadd(keys.events(self._run), {"event": event}, maxlen=self._events_in_stream)
                if await self._try(pipeline.execute()) is None:
                    await asyncio.sleep(RETRY_S)
                    continue
                # emit() may have dropped the oldest events, which are part of this batch, while it was being sent.
                dropped = self.events_dropped_total - dropped_before
                for _ in range(len(batch) - dropped):
                    self._events.popleft()

    async def newest_command(self) -> str:
        """Return the stream id of the newest command to this node; "0": there is none. Wait until the store answers."""
        stream = keys.commands(self._run, self._node)
        while True:
            newest: Any = await self._try(self._client.xrevrange(stream, count=1))
            if newest is not None:
                return newest[0][0].decode() if newest else "0"
            await asyncio.sleep(RETRY_S)

    async def receive_commands(self, last_id: str, handle: CommandHandler, refuse: RefusalHandler) -> None:
        """Pass every command after ``last_id`` to ``handle``, in order, forever; pass other entries to ``refuse``.

        ``handle`` must not raise: an exception ends this loop.
        """
        stream = StreamReader(self._client, keys.commands(self._run, self._node))
        while True:
            batch = await self._try(stream.read(last_id, most=16, block_ms=BLOCK_MS))
            if batch is None:
                await asyncio.sleep(RETRY_S)
                continue
            last_id = batch.last_id
            if batch.has_lost:
                log.warning("the store has lost commands that this node has carried out: it reads those that are new")
            if batch.missed:
                many = "some" if batch.missed < 0 else batch.missed
                log.warning("%s commands to this node were removed before it read them", many)
            for entry_id, fields in batch.entries:
                try:
                    command, number = self._command(fields)
                except ForgedError as error:
                    refuse(entry_id, f"an entry of the command stream: {error}")
                except (KeyError, TypeError, DecodeError):
                    refuse(entry_id, "an entry of the command stream that is no command")
                else:
                    await handle(command, number, entry_id)

    def _command(self, fields: Mapping[bytes, bytes]) -> tuple[store.NodeCommand, int]:
        opened = self._seal.open(keys.commands(self._run, self._node), fields[b"command"])
        return store.NodeCommand.FromString(opened.content), opened.number
