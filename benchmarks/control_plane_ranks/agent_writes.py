"""What agents write to Redis, as bytes. All encoding is the agent's own: this is the only place that knows of it."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import redis.asyncio
from redis.asyncio.client import Pipeline

from holdfast_agent.reports.store_link import StoreLink
from holdfast_base.redis_client import StoreOutage
from holdfast_proto.v1 import store_pb2 as store
from tests.support.run_keys import KnownKey

LEASE_MS = 600_000
"""Time to live of a state. It is long, because simulated time may be much slower than the server's."""


class _KeptPipeline(Pipeline):
    """A pipeline whose commands are kept instead of sent."""

    kept: "list[tuple[Any, ...]]"

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: ARG002 - as in its base
        """Keep the commands, and return what the store would have answered to each."""
        self.kept += [arguments for arguments, _ in self.command_stack]
        answers: list[Any] = [True for _ in self.command_stack]
        self.command_stack.clear()
        return answers


class _KeepingClient(redis.asyncio.Redis):
    """A client that sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Any, ...]] = []

    async def execute_command(self, *args: object, **_: object) -> bool:
        """Keep a command."""
        self.kept.append(args)
        return True

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Return a pipeline that is kept."""
        pipeline = _KeptPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.kept = self.kept
        return pipeline


class AgentWrites:
    """Encodes the writes of one agent per node. Create it in a loop."""

    def __init__(self, spec: store.RunSpec, nodes: Iterable[str]) -> None:
        self._client = _KeepingClient()
        self._packer: Any = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        outage = StoreOutage(logging.getLogger(__name__), "", "")
        self._links = {
            node: StoreLink(self._client, spec.run, node, outage, KnownKey(spec.run), state_ttl_ms=LEASE_MS)
            for node in nodes
        }
        for link in self._links.values():
            link.serve(spec)
        self._senders = [asyncio.create_task(link.send_events()) for link in self._links.values()]

    async def of_states(self, states: Iterable[store.NodeState]) -> bytes:
        """Return what the agents of these nodes write to publish them."""
        for state in states:
            await self._links[state.node].publish_state(state)
        return self._taken()

    async def of_events(self, events: Mapping[str, store.Event]) -> bytes:
        """Return what agents write to send an event each. ``events``: by node."""
        for node, event in events.items():
            self._links[node].emit(event)
        while len(self._client.kept) < len(events):
            await asyncio.sleep(0)
        return self._taken()

    async def close(self) -> None:
        """End the jobs of the agents."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    def _taken(self) -> bytes:
        packed = b"".join(self._packer.pack_commands(self._client.kept))
        self._client.kept.clear()
        return packed
