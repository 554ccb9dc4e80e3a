"""What incidents say against nodes: a history that outlives the ranks, and that decides which nodes are checked.

A fault counts against a node if it names that node, or ranks of that node alone. A rank that ended with an exception,
was killed or asked to end, or was short of memory does not: its program or a person has most likely done it. Nor does a
fault of a rank that had one at the same step before, or on another node, or one that an operator has injected.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

FAULTS_KEPT = 8
NODES_KEPT = 256
"""Most nodes with a history: the record of the run is written whole at each change."""
WINDOW_S = 7 * 86_400.0
"""Time in which faults of a node count together."""
CHECK_AGAIN_S = 3600.0
"""Time between two checks of a node whose ranks only end or hang: each check delays a restart."""
MANY_FAULTS = 3
"""Faults in that time after which a node should not train, if the other nodes have had far fewer."""
MANY_TIMES = 3.0
"""Least number of its faults, as a multiple of the mean of the other nodes: else the program fails everywhere."""

_SUSPICIOUS = (store.VERDICT_KIND_LOST_NODE, store.VERDICT_KIND_SILENT_CORRUPTION, store.VERDICT_KIND_STRAGGLER)
"""Faults that hardware has most often."""
_OF_NODES = (
    *_SUSPICIOUS,
    store.VERDICT_KIND_DEAD_RANK,
    store.VERDICT_KIND_HUNG_COLLECTIVE,
    store.VERDICT_KIND_TRANSPORT,
)
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals that a process gets for what it does. Others come from people, or from a kernel short of memory."""


def history_of(record: store.CoordinatorState, name: str) -> store.NodeHistory | None:
    """Return what is known against a node; None: nothing is."""
    return next((one for one in record.node_histories if one.node == name), None)


def reasons(record: store.CoordinatorState) -> dict[str, str]:
    """Return why nodes should not train, by name."""
    return {one.node: one.quarantine for one in record.node_histories if one.quarantine}


@contextmanager
def edited_history(tick: Tick, name: str) -> Iterator[store.NodeHistory]:
    """Yield the history of a node to fill in: at the end of the block it is the newest of the record."""
    with tick.edit_record() as record:
        edited = store.NodeHistory(node=name)
        others = [one for one in record.node_histories if one.node != name]
        edited.MergeFrom(history_of(record, name) or edited)
        yield edited
        if len(others) >= NODES_KEPT:  # the oldest without a quarantine, or the oldest
            others.remove(next((one for one in others if not one.quarantine), others[0]))
        kept = [*others, edited] if edited.faults or edited.quarantine or edited.released_unix_s else others
        record.ClearField("node_histories")
        record.node_histories.extend(kept)


def note(tick: Tick, incident: store.Incident) -> str:
    """Add an incident to the history of the node that is at fault; return its name, or "" if no node is."""
    name = _node_at_fault(tick, incident)
    known = history_of(tick.record, name) or store.NodeHistory()
    if name and not any(_is_of(one, incident) for one in known.faults):
        fault = store.NodeFault(unix_s=tick.now, kind=incident.verdict.kind, run=tick.record.run, incident=incident.id)
        with edited_history(tick, name) as history:
            history.faults.append(fault)
            del history.faults[:-FAULTS_KEPT]
    return name


def _is_of(fault: store.NodeFault, incident: store.Incident) -> bool:
    """Whether a fault is that of an incident. An earlier start of the run may have had one of the same id."""
    is_same = (fault.run, fault.incident, fault.kind) == (incident.run, incident.id, incident.verdict.kind)
    return is_same and fault.unix_s >= incident.detected_unix_s


def counted_faults(history: store.NodeHistory) -> Sequence[store.NodeFault]:
    """Return the faults that count together, oldest first: those since its release and around the newest one."""
    newest = history.faults[-1].unix_s if history.faults else 0.0
    since = max(history.released_unix_s, newest - WINDOW_S)
    return [fault for fault in history.faults if fault.unix_s > since]


def are_many(tick: Tick, history: store.NodeHistory) -> bool:
    """Return whether a node should not train because it has had far more faults than the others.

    Faults of others later on do not end that: a person does.
    """
    if history.repeats and len(counted_faults(history)) >= MANY_FAULTS:
        return True
    count, others = len(counted_faults(history)), tick.state.spec.nodes - 1
    of_others = sum(len(counted_faults(one)) for one in tick.record.node_histories if one.node != history.node)
    return count >= MANY_FAULTS and others > 0 and count >= MANY_TIMES * of_others / others


def fault_to_check(tick: Tick, name: str) -> str:
    """Return the incident for which a node should be checked before ranks start there again; "": there is none.

    A rank that ends or hangs for the first time on a node most often has another cause, and need not wait for a check.
    """
    history = history_of(tick.record, name)
    faults = counted_faults(history) if history is not None else ()
    if not faults or faults[-1].run != tick.record.run:
        return ""
    newest, check = faults[-1], tick.state.nodes[name].check
    is_checked = check.id == newest.incident or (not check.id and check.ended_unix_s > newest.unix_s)
    is_repeated = len(faults) > 1 and check.ended_unix_s < max(faults[0].unix_s, newest.unix_s - CHECK_AGAIN_S)
    is_suspicious = is_repeated or newest.kind in _SUSPICIOUS or _names_gpu(tick, newest)
    return newest.incident if is_suspicious and not is_checked else ""


def _names_gpu(tick: Tick, fault: store.NodeFault) -> bool:
    verdict = tick.state.incidents.get(fault.incident, store.Incident()).verdict
    return any(one.HasField("gpu_fault") for one in (*verdict.death.ends, *verdict.hang.ranks))


def _node_at_fault(tick: Tick, incident: store.Incident) -> str:
    verdict, places = incident.verdict, {place.node for place in incident.culprits}
    if tick.state.spec.nodes == 1 or verdict.kind not in _OF_NODES or _is_of_program(tick, incident):
        return ""
    if verdict.node:
        return verdict.node
    return places.pop() if len(places) == 1 else ""


def _is_of_program(tick: Tick, incident: store.Incident) -> bool:
    verdict = incident.verdict
    if verdict.kind == store.VERDICT_KIND_DEAD_RANK and not any(map(_is_sudden, verdict.death.ends)):
        return True
    injected = (event for event in tick.state.newest_faults if event.generation == incident.generation)
    if any(event.fault_injected.fault.rank in verdict.culprits for event in injected):
        return True
    earlier = (one for one in tick.state.incidents.values() if one.id != incident.id)
    return any(_is_again(one, incident) for one in earlier)


def _is_sudden(end: store.RankEnd) -> bool:
    """Whether a rank has crashed, or was ended by an error of its GPU."""
    return (end.HasField("signal") and end.signal in _CRASHES) or end.HasField("gpu_fault")


def _is_again(earlier: store.Incident, incident: store.Incident) -> bool:
    """Whether the same rank had the same fault at the same step, or on another node."""
    before, now = earlier.verdict, incident.verdict
    if before.kind != now.kind or not now.culprits or before.culprits[:1] != now.culprits[:1] or now.node:
        return False
    nodes = {one.culprits[0].node for one in (earlier, incident) if one.culprits}
    return (before.step == now.step and now.step >= 0) or len(nodes) > 1
