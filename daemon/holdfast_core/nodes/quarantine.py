"""Which nodes should not train, and why.

A reason follows from the newest check of the node and from its history, so a new leader comes to the same one. A check
that finds nothing ends what an earlier one has found. An operator's release ends everything that was known until then.

By default a quarantine is only reported. If the run enforces it, such a node is the last choice for a start. It still
trains if there is no other, or if steps would be lost, and a run that trains is never stopped for it.
"""

from collections.abc import Collection
from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.nodes import node_faults
from holdfast_core.nodes.node_speeds import checks_of, common_failures, slow_lines
from holdfast_core.texts.nodes import failure_line, repeated_faults
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

_MOST_CHARACTERS = 400
"""Length of a reason."""


def judge(tick: Tick) -> None:
    """Decide again which nodes should not train, if one was checked since the last time."""
    seen = {name: node.check.ended_unix_s for name, node in tick.state.nodes.items() if node.HasField("check")}
    if seen == tick.state.judged_checks:
        return
    is_first = tick.state.judged_checks is None  # a new run begins with the faults that earlier ones have seen
    tick.state = replace(tick.state, judged_checks=seen)
    _decide(tick, {*seen, *(one.node for one in tick.record.node_histories)} if is_first else seen)


def see_incident(tick: Tick, incident: store.Incident) -> None:
    """Note what an incident says against a node, and whether the node should still train."""
    name = node_faults.note(tick, incident)
    if name and _decide(tick, [name]) and (reason := node_faults.reasons(tick.record).get(name)):
        incidents.add_line(tick, tick.state.incidents[incident.id], f"node {name} should not train: {reason}")


def release(tick: Tick, name: str) -> None:
    """End the quarantine of a node, and let nothing count that is known against it now."""
    if node_faults.history_of(tick.record, name) is None:
        return
    checked = tick.state.nodes[name].check.ended_unix_s if name in tick.state.nodes else 0.0
    with node_faults.edited_history(tick, name) as history:
        history.quarantine, history.since_unix_s, history.repeats = "", 0.0, False
        history.released_unix_s = max(tick.now, checked)  # the clock of the node may be ahead


def is_last_choice(tick: Tick, name: str) -> bool:
    """Return whether another node is to train in the place of this one, if there is one."""
    return tick.state.spec.quarantines and name in node_faults.reasons(tick.record)


def _decide(tick: Tick, names: Collection[str]) -> bool:
    """Give nodes the quarantine that follows from what is known; return whether one has changed."""
    checks = checks_of(tick.state)
    slow, common = slow_lines(checks), common_failures(checks)
    histories = {one.node: one for one in tick.record.node_histories}
    has_changed = False
    for name in names:
        history = histories.get(name) or store.NodeHistory(node=name)
        failures = checks[name].failures if name in checks else ()
        found = [failure_line(failure) for failure in failures if failure.kind not in common]
        found.extend(slow.get(name, ()))
        repeats = node_faults.are_many(tick, history)
        if repeats:
            found.append(repeated_faults(node_faults.counted_faults(history)))
        reason = "; ".join(found)[:_MOST_CHARACTERS]
        is_known = bool(found) or name in checks  # a node that is lost, or has a new agent, shows no check
        if is_known and reason != history.quarantine:
            has_changed = True
            with node_faults.edited_history(tick, name) as edited:
                edited.quarantine, edited.since_unix_s = reason, tick.now if reason else 0.0
                edited.repeats = repeats
    return has_changed
