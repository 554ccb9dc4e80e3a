"""The nodes of a run: spares take the places of missing ones; without a spare, the run may train on with fewer nodes.

Only data-parallel replicas can be left out, whole ones, so the ranks of the nodes that are left must make up whole
replicas. The ranks then have another layout than the snapshots in memory. So what is newest is made a checkpoint first,
and the next generation starts from that: every rank reads what it needs of it. When nodes are ready again, the run
takes a checkpoint and continues from it with all of them.

The record keeps a change until the new world has trained: a start that fails is tried again from the checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm

from holdfast_core import incidents
from holdfast_core.checkpointing import checkpoint_commands
from holdfast_core.model import committed_steps
from holdfast_core.naming import listed
from holdfast_core.nodes import quarantine
from holdfast_core.recovery import new_generation, resized_state
from holdfast_core.recovery.ending import RESEND_S
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

GROW_AGAIN_S = 60.0
"""Least time before nodes are taken in again after a larger world has not trained. It doubles each time."""
MOST_DOUBLINGS = 6


def replace_lost(tick: Tick) -> None:
    """Let spares take the places of missing nodes."""
    members = list(tick.record.nodes)
    filled = _filled(tick, members)
    for name, spare in zip(members, filled, strict=True):
        if name != spare:
            incidents.add_line_to_open(tick, f"node {spare} takes the place of {name}")
    if members != filled:
        with tick.edit_record() as record:
            record.nodes[:] = filled


def take_back(tick: Tick) -> None:
    """Leave no node out after all, if all of them, or spares, are here before the smaller world has trained."""
    resize, members = tick.record.resize, _filled(tick, tick.record.resize.nodes)
    if not members or not all(name in tick.state.nodes for name in members):
        return
    with tick.edit_record() as record:
        record.nodes[:] = members
        record.resize.ClearField("nodes")
        if record.generation == resize.generation:  # else what is in memory may be of the smaller world
            record.ClearField("resize")
    incidents.add_line_to_open(tick, f"no node is missing any more: the run trains on with {_share(tick)}")


def fall_back(tick: Tick) -> None:
    """Leave out again what was taken in, if the next world has not trained, or if some of it is missing already.

    A node may come back broken, or not for long, and so may a spare that has taken the place of a node that should not
    train. The run has trained without it, and must not fail or wait for it.
    """
    record, nodes = tick.record, tick.state.nodes
    fewer = list(record.resize.fewer)
    is_to_start = record.generation == record.resize.generation and all(name in nodes for name in record.nodes)
    if not fewer or is_to_start or not all(name in nodes for name in fewer):
        return
    was_larger, back = len(record.nodes) > len(fewer), sorted(set(fewer) - set(record.nodes))
    with tick.edit_record() as edited:
        edited.nodes[:] = fewer
        edited.resize.ClearField("fewer")
        edited.failed_growths = record.failed_growths + was_larger
    how = _share(tick) if was_larger else f"{listed(back)} again"
    what = "the larger world has" if was_larger else "the spares have"
    incidents.add_line_to_open(tick, f"{what} not trained: the run trains on with {how}")


def stop_strays(tick: Tick) -> None:
    """Have nodes that were replaced while they were unreachable stop the ranks that they still have."""
    if tick.observes or tick.now - tick.state.strays_stopped_unix_s < RESEND_S:
        return
    members = set(tick.record.nodes)
    for name, node in tick.state.nodes.items():
        ours = name not in members and node.instance == tick.state.spec.instance
        if ours and node.generation and not node.stopped:
            tick.state = replace(tick.state, strays_stopped_unix_s=tick.now)
            message = store.StopGeneration(reason="another node has taken this one's place")
            tick.send_to(name, store.NodeCommand(generation=node.generation, stop=message))


def is_whole(spec: store.RunSpec, running: Mapping[str, store.NodeState]) -> bool:
    """Return whether these nodes have all ranks of a world: of all nodes, or of fewer while some are missing."""
    size = len(running) * spec.ranks_per_node
    fewer = spec.min_replicas > 0 and {node.world_size for node in running.values()} == {size}
    return len(running) == spec.nodes or fewer


def see_training(tick: Tick) -> None:
    """Note that the present world trains, and what a replica of it is."""
    record = tick.record
    with tick.edit_record() as edited:
        edited.trained_world_size, edited.trained_generation = tick.world_size, record.generation
        if record.resize.fewer:
            edited.failed_growths = 0
        edited.replica_ranks = max((rank.replica_ranks for rank in tick.ranks.values()), default=0)
        edited.ClearField("resize")
        if len(record.nodes) == tick.state.spec.nodes:
            edited.shrunk_incident = ""


def shrink(tick: Tick) -> None:
    """Leave missing nodes out, if the run may, once it has waited for others: see `--resize-after-s`."""
    spec, record = tick.state.spec, tick.record
    missing = [name for name in record.nodes if name not in tick.state.nodes]
    if not spec.min_replicas or not missing:
        return
    left = _whole_replicas(tick, [name for name in record.nodes if name not in missing])
    who = f"node {missing[0]}" if len(missing) == 1 else f"{len(missing)} nodes"
    if left is None:
        few = f"fewer replicas than --min-replicas {spec.min_replicas} are left"
        resized_state.say(
            tick, f"waits for {who}: {few if _replica_ranks(tick) else 'no rank has said what a replica is'}"
        )
        return
    resized_state.say(
        tick, f"waits {spec.resize_after_s:g} s for {who}, or for a spare, and then trains on without (--min-replicas)"
    )
    missed = max(tick.state.missed_unix_s.get(name, tick.now) for name in missing)
    if tick.now - max(missed, record.phase_since_unix_s, record.resize.since_unix_s) < spec.resize_after_s:
        return
    point = None if record.resize.world_size else new_generation.choose(tick)
    if point is not None and point.source == store.SOURCE_SEED and record.trained:
        resized_state.say(
            tick, f"waits for {who}: nothing is left to train on from, neither checkpoint nor replica snapshots"
        )
        return
    if not record.resize.world_size:
        resized_state.begin(tick, tick.world_size, point)
    present = [name for name in record.nodes if name not in missing]
    with tick.edit_record() as edited:
        edited.resize.nodes[:] = list(record.resize.nodes) or list(record.nodes)
        edited.nodes[:] = left
        edited.resize.since_unix_s = tick.now
        edited.shrunk_incident = record.shrunk_incident or record.open_incident
    spare = f"; replicas are whole, so {', '.join(present[len(left) :])} must wait" if len(left) < len(present) else ""
    incidents.add_line_to_open(tick, f"no node has come: the run trains on with {_share(tick)}{spare}")


def grow(tick: Tick) -> str:
    """Take nodes in again once they have been ready for `--resize-after-s`, from a checkpoint taken for that.

    Return why the ranks must be stopped now; "" if they need not.
    """
    spec, record = tick.state.spec, tick.record
    if not spec.min_replicas or len(record.nodes) == spec.nodes:
        return ""
    stands_still = record.standstill_incident or tick.state.suspicion is not None
    if stands_still or record.loss_counts.HasField("nonfinite_since"):  # that may end in a restart of another kind
        return ""
    good = [name for name in spares(tick, record.nodes) if not quarantine.is_last_choice(tick, name)]
    wider = _whole_replicas(tick, [*record.nodes, *good][: spec.nodes])
    if wider is None or len(wider) <= len(record.nodes):
        _forget_growth(tick, since_unix_s=0.0)
    elif not tick.state.wider_since_unix_s:
        tick.state = replace(tick.state, wider_since_unix_s=tick.now)
    elif not record.HasField("resize"):
        if tick.now - tick.state.wider_since_unix_s >= _growth_wait_s(tick):
            _begin_growth(tick)
    elif any(step >= record.resize.step for step in committed_steps(tick.state)):
        return _take_in(tick, wider)
    elif record.resize.failed or tick.now - record.resize.since_unix_s > resized_state.WRITE_PATIENCE_S:
        _forget_growth(tick, since_unix_s=tick.now)
    return ""


def give_up_growth(tick: Tick) -> None:
    """Leave the nodes as they are: a fault stops the ranks before the checkpoint for more nodes is there."""
    resize = tick.record.resize
    if tick.record.HasField("resize") and not resize.world_size and not resize.fewer:
        _forget_growth(tick, since_unix_s=0.0)


def _growth_wait_s(tick: Tick) -> float:
    """Return how long nodes must have been ready: longer after each larger world that has not trained."""
    wait_s, failed = tick.state.spec.resize_after_s, tick.record.failed_growths
    return max(wait_s, GROW_AGAIN_S) * 2.0 ** min(failed, MOST_DOUBLINGS) if failed else wait_s


def _begin_growth(tick: Tick) -> None:
    step = checkpoint_commands.take(tick)
    if step is None:
        return
    with tick.edit_record() as record:
        record.resize.step, record.resize.since_unix_s = step, tick.now


def _take_in(tick: Tick, wider: Sequence[str]) -> str:
    back = [name for name in wider if name not in tick.record.nodes]
    who = f"node {back[0]} is" if len(back) == 1 else f"{len(back)} nodes are"
    with tick.edit_record() as record:
        record.resize.world_size, record.resize.since_unix_s = tick.world_size, tick.now
        record.resize.generation, record.resize.fewer[:] = record.generation, list(record.nodes)
        record.nodes[:] = wider
    reason = f"{who} taken in: the run trains on with {_share(tick)}"
    incident = tick.state.incidents.get(tick.record.shrunk_incident)
    if incident is not None:
        incidents.add_line(tick, incident, reason)
    return reason


def _forget_growth(tick: Tick, since_unix_s: float) -> None:
    tick.state = replace(tick.state, wider_since_unix_s=since_unix_s)
    if tick.record.HasField("resize"):
        with tick.edit_record() as record:
            record.ClearField("resize")


def _whole_replicas(tick: Tick, present: Sequence[str]) -> list[str] | None:
    """Return the nodes, of those that are present, whose ranks make up whole replicas; None if they are too few."""
    spec, replica_ranks = tick.state.spec, _replica_ranks(tick)
    if not replica_ranks:
        return None
    together = lcm(spec.ranks_per_node, replica_ranks) // spec.ranks_per_node
    count = len(present) // together * together
    return list(present[:count]) if count * spec.ranks_per_node >= spec.min_replicas * replica_ranks else None


def _replica_ranks(tick: Tick) -> int:
    """Return how many ranks a replica has; 0: no rank has said it. Before a first step only the nodes know it."""
    known = (rank.replica_ranks for node in tick.state.nodes.values() for rank in node.ranks)
    return tick.record.replica_ranks or max(known, default=0)


def _filled(tick: Tick, members: Sequence[str]) -> list[str]:
    """Return members with spares in the places of those that are missing, as far as there are spares."""
    free = iter(spares(tick, members))
    return [name if name in tick.state.nodes else next(free, name) for name in members]


def spares(tick: Tick, members: Sequence[str]) -> list[str]:
    """Return the nodes that are ready and are no members, by name; those that should not train come last."""
    taken, instance = set(members), tick.state.spec.instance
    ready = (name for name, node in tick.state.nodes.items() if node.ready and node.instance == instance)
    free = (name for name in ready if name not in taken)
    return sorted(free, key=lambda name: (quarantine.is_last_choice(tick, name), name))


def _share(tick: Tick) -> str:
    spec, here = tick.state.spec, len(tick.record.nodes)
    return f"{here} of {spec.nodes} nodes, {tick.world_size} of {spec.nodes * spec.ranks_per_node} ranks"
