"""The gRPC service that ranks talk to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc

from holdfast_agent.processes.containment import Errors
from holdfast_agent.processes.rank import Rank
from holdfast_agent.processes.rank_channel import Outbox
from holdfast_agent.rank_messages import RankMessages
from holdfast_base.sockets import claimed
from holdfast_proto.limits import PROTOCOL, REPORT_INTERVAL_S
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import session_pb2_grpc

Admit = Callable[[session.Hello], Rank | None]
"""Returns the rank that says hello, or None if it is refused."""


class RankSessions(session_pb2_grpc.RankAgentServicer):
    """One stream per rank: messages from the rank are folded in, messages to it come from its channel's outbox."""

    def __init__(self, messages: RankMessages, errors: Errors, admit: Admit) -> None:
        self._messages = messages
        self._errors = errors
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
        refusal = ""
        with self._errors.contained("rank_messages"):
            refusal = self._flaw_of_version(hello)
            rank = None if refusal else self._admit(hello)
        if rank is None:
            refusal = refusal or f"rank {hello.rank} of generation {hello.generation} is not one of this agent's"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
            return
        outbox: Outbox = asyncio.Queue()
        rank.channel.outbox = outbox
        yield session.AgentMessage(welcome=session.Welcome(report_interval_s=REPORT_INTERVAL_S))
        greeting: list[session.AgentMessage] = []
        with self._errors.contained("rank_messages"):
            greeting = self._messages.greeting(rank)
        for first_message in greeting:
            yield first_message
        reader = asyncio.create_task(self._read(rank, requests, outbox))
        try:
            while (message := await outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()
            # A rank that has reconnected in the meantime has a newer session.
            if rank.channel.outbox is outbox:
                rank.channel.outbox = None

    def _flaw_of_version(self, hello: session.Hello) -> str:
        if hello.protocol == PROTOCOL:
            return ""
        spoken = f"rank {hello.rank} speaks protocol {hello.protocol}, and this agent {PROTOCOL}"
        flaw = f"{spoken}: install one version of Holdfast for both; it trains on without being watched"
        self._errors.refuse("rank_messages", flaw)
        return flaw

    async def Tell(  # noqa: N802  as above
        self,
        request: session.WitnessWords,
        context: "grpc.aio.ServicerContext[session.WitnessWords, session.WitnessWordsTaken]",  # noqa: ARG002 - gRPC's
    ) -> session.WitnessWordsTaken:
        """Take in what a launcher says of its ranks."""
        with self._errors.contained("rank_messages"):
            self._messages.hear_launcher(request)
        return session.WitnessWordsTaken()

    async def _read(self, rank: Rank, requests: AsyncIterator[session.RankMessage], outbox: Outbox) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for message in requests:
                await self._messages.receive(rank, message)
        outbox.put_nowait(None)


async def serve(messages: RankMessages, errors: Errors, socket_path: Path, admit: Admit) -> grpc.aio.Server:
    """Serve the ranks that ``admit`` lets in on a unix socket, mode 0600. Raises OSError if it cannot be created."""
    server = grpc.aio.server()
    sessions = RankSessions(messages, errors, admit)
    session_pb2_grpc.add_RankAgentServicer_to_server(sessions, server)  # type: ignore[no-untyped-call]
    with claimed(socket_path, "--runtime-directory") as target:
        server.add_insecure_port(target)
        await server.start()
    return server
