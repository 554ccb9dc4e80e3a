from pathlib import Path

import pytest

from holdfast_agent.commands.fault_commands import FaultCommands
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1.fault_pb2 import Fault
from tests.support.answering_rank import answering
from tests.support.nodes import RecordedNode, begin, make_node

FAULT = Fault(kind="kill", rank=1, step=-1)


@pytest.fixture
def node(folder: Path) -> RecordedNode:
    node = make_node(folder)
    node.spec.injection_allowed = True
    begin(node, 3, {0: 1, 1: 1})
    node.ranks[1].progress.step = 7
    return node


async def requested(
    node: RecordedNode, fault: Fault, *, accepted: bool = True, detail: str = "too late"
) -> list[session.RankCommand]:
    """Request a fault of rank 1, which has a session and answers. Return the commands that it got."""
    async with answering(node, node.ranks[1], accepted=accepted, detail=detail) as got:
        await FaultCommands(node, node.link.emit).inject(fault)
    return got


async def test_a_fault_that_its_rank_accepts_is_reported_with_the_step_that_the_rank_is_in(node: RecordedNode) -> None:
    [command] = await requested(node, FAULT, detail="")
    assert (command.inject_fault, command.generation) == (FAULT, 3)
    [event] = node.link.emitted
    assert (event.generation, event.fault_injected.fault, event.fault_injected.step) == (3, FAULT, 7)


async def test_a_later_step_and_what_an_accepted_fault_waits_for_are_reported(node: RecordedNode) -> None:
    await requested(node, Fault(kind="kill", rank=1, step=9), detail="the phase eval")
    injected = node.link.emitted[0].fault_injected
    assert (injected.step, injected.waits_for) == (9, "the phase eval")


async def test_the_refusal_of_a_rank_is_reported(node: RecordedNode) -> None:
    await requested(node, FAULT, accepted=False)
    [event] = node.link.emitted
    assert (event.generation, event.fault_refused.fault, event.fault_refused.reason) == (3, FAULT, "too late")


async def test_no_rank_is_asked_in_a_run_that_allows_no_faults(node: RecordedNode) -> None:
    node.spec.injection_allowed = False
    assert await requested(node, FAULT) == []
    assert "--allow-faults" in node.link.emitted[0].fault_refused.reason


async def test_ranks_that_cannot_hear_are_reported(node: RecordedNode) -> None:
    await FaultCommands(node, node.link.emit).inject(Fault(kind="kill", rank=0))
    await FaultCommands(node, node.link.emit).inject(Fault(kind="kill", rank=5))
    reasons = [event.fault_refused.reason for event in node.link.emitted]
    assert reasons == ["it has no session", "it is not alive on this node"]
