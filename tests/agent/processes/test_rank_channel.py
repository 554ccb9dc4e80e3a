import asyncio

from holdfast_agent.processes.rank_channel import RankChannel
from holdfast_proto.v1 import session_pb2 as session


def stop_at(step: int) -> session.RankCommand:
    return session.RankCommand(stop_at=session.StopAt(step=step))


async def test_acknowledgement_resolves_the_command_that_it_names() -> None:
    channel = RankChannel()
    channel.outbox = asyncio.Queue()
    first, second = channel.command(stop_at(1)), channel.command(stop_at(2))
    sent = [channel.outbox.get_nowait() for _ in range(2)]
    ids = [message.command.id for message in sent if message is not None]
    assert len(set(ids)) == channel.unacknowledged == 2
    channel.acknowledge(session.CommandAck(id=ids[1], accepted=True))
    assert second.result().accepted
    assert not first.done()
    assert channel.unacknowledged == 1


async def test_a_command_without_a_session_is_cancelled_and_an_acknowledgement_without_a_task_ignored() -> None:
    channel = RankChannel()
    assert channel.command(stop_at(1)).cancelled()
    assert channel.unacknowledged == 0
    channel.outbox = asyncio.Queue()
    asked = channel.command(stop_at(1))
    asked.cancel()
    channel.acknowledge(session.CommandAck(id=1))
    channel.acknowledge(session.CommandAck(id=77))
    assert asked.cancelled()
