"""What a start waits for, and how long: checks of nodes that had a fault, and better nodes than those in quarantine."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.nodes import quarantine
from holdfast_core.nodes.node_faults import fault_to_check
from holdfast_core.recovery.ending import RESEND_S
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

CHECK_PATIENCE_S = 40.0
"""Time for the checks. A check takes some seconds, and an agent ends it after 20 s."""
SPARE_PATIENCE_S = 60.0
"""Time that a run waits for other nodes before it begins with nodes that should not train."""


def chosen(tick: Tick, ready: Sequence[str]) -> list[str] | None:
    """Return the nodes that a run begins with, of those that are ready; None: it waits for others."""
    nodes = tick.state.spec.nodes
    if len(ready) < nodes:
        return None
    best_first = sorted(ready, key=lambda name: (quarantine.is_last_choice(tick, name), name))[:nodes]
    is_good = not any(quarantine.is_last_choice(tick, name) for name in best_first)
    return sorted(best_first) if is_good or _waited_s(tick) >= SPARE_PATIENCE_S else None


def must_wait(tick: Tick) -> bool:
    """Have nodes with a suspicious fault checked before ranks start there; return whether one has not answered yet."""
    if not tick.state.spec.checks_nodes or tick.observes:
        return False
    wanted = {name: identity for name in tick.record.nodes if (identity := fault_to_check(tick, name))}
    if not wanted:
        return False
    is_first = not tick.state.start_waits_since_unix_s
    if _waited_s(tick) > CHECK_PATIENCE_S:
        if tick.once("no check"):
            incidents.add_line_to_open(tick, f"node {min(wanted)} has not answered with its check: it trains again")
        return False
    if is_first or tick.now - tick.state.sent_unix_s > RESEND_S:
        tick.send(wanted, lambda name: store.NodeCommand(check_node=store.CheckNode(id=wanted[name])))
    if is_first:
        incidents.add_line_to_open(tick, f"node {min(wanted)} is checked before its ranks start again")
    return True


def _waited_s(tick: Tick) -> float:
    """Return how long this start has waited; the first call begins to count."""
    if not tick.state.start_waits_since_unix_s:
        tick.state = replace(tick.state, start_waits_since_unix_s=tick.now)
    return tick.now - tick.state.start_waits_since_unix_s
