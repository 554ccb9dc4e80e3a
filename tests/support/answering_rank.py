"""A rank that has a session with its agent and answers its commands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from holdfast_agent.processes.rank import Rank
from holdfast_proto.v1 import session_pb2 as session
from tests.support.coroutines import end
from tests.support.nodes import RecordedNode


@contextlib.asynccontextmanager
async def answering(
    node: RecordedNode,
    rank: Rank,
    *,
    accepted: bool = True,
    detail: str = "",
    then: Callable[[session.RankCommand], Awaitable[None]] | None = None,
) -> AsyncIterator[list[session.RankCommand]]:
    """Let a rank acknowledge its commands, and do ``then`` after each. Yields the commands that it has got."""
    outbox: asyncio.Queue[session.AgentMessage | None] = asyncio.Queue()
    rank.channel.outbox = outbox
    got: list[session.RankCommand] = []

    async def answer() -> None:
        while (message := await outbox.get()) is not None:
            got.append(message.command)
            ack = session.CommandAck(id=message.command.id, accepted=accepted, detail=detail)
            await node.messages.receive(rank, session.RankMessage(ack=ack))
            if then is not None:
                await then(message.command)

    task = asyncio.create_task(answer())
    try:
        yield got
    finally:
        await end(task)
