import asyncio
from pathlib import Path

from holdfast_agent.commands.fault_commands import FaultCommands
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1.fault_pb2 import Fault
from tests.support.coroutines import end
from tests.support.nodes import RecordedNode, begin, make_node

FAULT = Fault(kind="kill", rank=1, step=-1)


def node_of_two(folder: Path, *, allowed: bool = True) -> RecordedNode:
    node = make_node(folder)
    node.spec.injection_allowed = allowed
    begin(node, 3, {0: 1, 1: 1})
    node.ranks[1].progress.step = 7
    return node


async def requested(
    node: RecordedNode, fault: Fault, *, accepted: bool = True, detail: str = "too late"
) -> list[session.RankCommand]:
    """Request a fault of rank 1, which has a session and answers. Return the commands that it got."""
    outbox: asyncio.Queue[session.AgentMessage | None] = asyncio.Queue()
    node.ranks[1].channel.outbox = outbox
    got = []

    async def answer() -> None:
        while (message := await outbox.get()) is not None:
            got.append(message.command)
            ack = session.CommandAck(id=message.command.id, accepted=accepted, detail=detail)
            await node.messages.receive(node.ranks[1], session.RankMessage(ack=ack))

    task = asyncio.create_task(answer())
    await FaultCommands(node, node.link.emit).inject(fault)
    await end(task)
    return got


async def test_a_fault_that_its_rank_accepts_is_reported_with_the_step_that_the_rank_is_in(folder: Path) -> None:
    node = node_of_two(folder)
    [command] = await requested(node, FAULT, detail="")
    assert (command.inject_fault, command.generation) == (FAULT, 3)
    [event] = node.link.emitted
    assert (event.generation, event.fault_injected.fault, event.fault_injected.step) == (3, FAULT, 7)


async def test_a_fault_of_a_later_step_is_reported_with_that_step(folder: Path) -> None:
    node = node_of_two(folder)
    await requested(node, Fault(kind="kill", rank=1, step=9))
    assert node.link.emitted[0].fault_injected.step == 9


async def test_what_an_accepted_fault_waits_for_is_reported(folder: Path) -> None:
    node = node_of_two(folder)
    await requested(node, FAULT, detail="the phase eval")
    assert node.link.emitted[0].fault_injected.waits_for == "the phase eval"


async def test_the_refusal_of_a_rank_is_reported(folder: Path) -> None:
    node = node_of_two(folder)
    await requested(node, FAULT, accepted=False)
    [event] = node.link.emitted
    assert (event.generation, event.fault_refused.fault, event.fault_refused.reason) == (3, FAULT, "too late")


async def test_no_rank_is_asked_in_a_run_that_allows_no_faults(folder: Path) -> None:
    node = node_of_two(folder, allowed=False)
    assert await requested(node, FAULT) == []
    assert "--allow-faults" in node.link.emitted[0].fault_refused.reason


async def test_ranks_that_cannot_hear_are_reported(folder: Path) -> None:
    node = node_of_two(folder)
    await FaultCommands(node, node.link.emit).inject(Fault(kind="kill", rank=0))
    await FaultCommands(node, node.link.emit).inject(Fault(kind="kill", rank=5))
    reasons = [event.fault_refused.reason for event in node.link.emitted]
    assert reasons == ["it has no session", "it is not alive on this node"]
