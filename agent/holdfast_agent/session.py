"""The gRPC service that ranks talk to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from holdfast_agent.processes.rank import Rank
from holdfast_proto.sockets import claimed
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import session_pb2_grpc

if TYPE_CHECKING:
    from holdfast_agent.node import Node

REPORT_INTERVAL_S = 0.2

Admit = Callable[[session.Hello], Rank | None]
"""Returns the rank that says hello, or None if it is refused."""


class RankSessions(session_pb2_grpc.RankAgentServicer):
    """One stream per rank: messages up go to the node, commands come down from each rank's outbox."""

    def __init__(self, node: "Node", admit: Admit) -> None:
        self._node = node
        self._admit = admit

    async def Session(  # noqa: N802  the name is the proto's
        self,
        requests: AsyncIterator[session.RankMessage],
        context: "grpc.aio.ServicerContext[session.RankMessage, session.AgentMessage]",
    ) -> AsyncIterator[session.AgentMessage]:
        """Serve one rank until it or its generation ends."""
        first = await anext(aiter(requests), None)
        if first is None:
            return
        hello = first.hello
        rank: Rank | None = None
        grant: session.SlotGrant | None = None
        with self._node.errors.contained("rank_messages"):
            rank = self._admit(hello)
        if rank is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"rank {hello.rank} of generation {hello.generation} is not one of this agent's",
            )
            return
        outbox: asyncio.Queue[session.AgentMessage | None] = asyncio.Queue()
        rank.outbox = outbox
        yield session.AgentMessage(welcome=session.Welcome(report_interval_s=REPORT_INTERVAL_S))
        with self._node.errors.contained("rank_messages"):
            grant = self._node.existing_slots(rank)
        if grant is not None:
            yield session.AgentMessage(slot_grant=grant)
        reader = asyncio.create_task(self._read(rank, requests, outbox))
        try:
            while (message := await outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()
            if rank.outbox is outbox:
                rank.outbox = None

    async def _read(
        self,
        rank: Rank,
        requests: AsyncIterator[session.RankMessage],
        outbox: "asyncio.Queue[session.AgentMessage | None]",
    ) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for message in requests:
                await self._node.receive(rank, message)
        outbox.put_nowait(None)


async def serve(node: "Node", socket_path: Path, admit: Admit | None = None) -> grpc.aio.Server:
    """Serve ranks on a unix socket, mode 0600. Raises OSError if the socket cannot be had.

    ``admit``: says who is served; by default the ranks that the node has started.
    """
    server = grpc.aio.server()
    session_pb2_grpc.add_RankAgentServicer_to_server(RankSessions(node, admit or node.admit), server)  # type: ignore[no-untyped-call]
    with claimed(socket_path, "--runtime-directory") as target:
        server.add_insecure_port(target)
        await server.start()
    return server
