"""Passes a fault to the rank that it is to harm, and reports whether the fault will strike."""

import asyncio
import logging
from collections.abc import Callable

from holdfast_agent.node import Node
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault

log = logging.getLogger(__name__)

ACK_PATIENCE_S = 5.0
"""Longest wait for a rank's answer to a command."""


class FaultCommands:
    """Injects faults into the ranks of one node, if the run allows faults."""

    def __init__(self, node: Node, emit: Callable[[store.Event], None]) -> None:
        self._node = node
        self._emit = emit

    async def inject(self, fault: Fault) -> None:
        """Pass the fault to its rank; emit FaultInjected if the rank accepts it, else FaultRefused."""
        generation = self._node.generation
        answer = await self._ask(fault)
        if not answer.accepted:
            self.refuse(fault, generation, answer.detail)
        else:
            step = max(fault.step, self._node.ranks[fault.rank].progress.step)
            injected = store.FaultInjected(fault=fault, step=step, waits_for=answer.detail)
            self._emit(store.Event(generation=generation, fault_injected=injected))

    def refuse(self, fault: Fault, generation: int, reason: str) -> None:
        """Report that a fault requested in a generation will not strike, and why."""
        log.warning("refused fault %s of rank %d: %s", fault.kind, fault.rank, reason)
        refused = store.FaultRefused(fault=fault, reason=reason)
        self._emit(store.Event(generation=generation, fault_refused=refused))

    async def _ask(self, fault: Fault) -> session.CommandAck:
        """Return the rank's answer, or why there is none."""
        if not self._node.spec.injection_allowed:
            return _refusal("this run allows no faults: start it with --allow-faults")
        rank = self._node.ranks.get(fault.rank)
        if rank is None or not rank.is_alive:
            return _refusal("it is not alive on this node")
        answer = rank.command(session.RankCommand(inject_fault=fault))
        done, _ = await asyncio.wait([answer], timeout=ACK_PATIENCE_S)
        if not done:
            return _refusal(f"it has not answered within {ACK_PATIENCE_S:.0f} s")
        return _refusal("it has no session") if answer.cancelled() else answer.result()


def _refusal(reason: str) -> session.CommandAck:
    return session.CommandAck(accepted=False, detail=reason)
