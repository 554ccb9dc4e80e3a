"""Has a rank of this node harmed on purpose, and tells what became of the order."""

import asyncio
import logging

from holdfast_agent.node import Node
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault

log = logging.getLogger(__name__)

ACK_PATIENCE_S = 5.0


async def inject(node: Node, fault: Fault) -> None:
    """Give the order to the rank; emit FaultInjected once it has accepted, FaultRefused if it has not."""
    generation = node.generation
    refusal = await _ask(node, fault)
    if refusal:
        refuse(node, fault, generation, refusal)
    else:
        step = max(fault.step, node.ranks[fault.rank].progress.step)
        injected = store.FaultInjected(fault=fault, step=step)
        node.link.emit(store.Event(generation=generation, fault_injected=injected))


def refuse(node: Node, fault: Fault, generation: int, reason: str) -> None:
    """Tell that a fault ordered in a generation will not strike, and why."""
    log.warning("refused fault %s of rank %d: %s", fault.kind, fault.rank, reason)
    refused = store.FaultRefused(fault=fault, reason=reason)
    node.link.emit(store.Event(generation=generation, fault_refused=refused))


async def _ask(node: Node, fault: Fault) -> str:
    """Return why the rank will not be harmed, or "" if it will."""
    if not node.spec.injection_allowed:
        return "this run allows no faults: start it with --allow-faults"
    rank = node.ranks.get(fault.rank)
    if rank is None or not rank.is_alive:
        return "it does not live on this node"
    answer = node.command(rank, session.RankCommand(inject_fault=fault))
    done, _ = await asyncio.wait([answer], timeout=ACK_PATIENCE_S)
    if not done:
        return f"it has not answered within {ACK_PATIENCE_S:.0f} s"
    if answer.cancelled():
        return "it has no session"
    return "" if answer.result().accepted else answer.result().detail
