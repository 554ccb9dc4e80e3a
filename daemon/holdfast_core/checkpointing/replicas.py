"""Replica snapshots: the leader chooses their step, each node's partner, and who has them when a run starts again.

Each node makes shards of its ranks' snapshots of the same step, and sends them to its partner. Once all nodes report
both, each rank's snapshot is on two nodes: the set is complete, and older ones may go. The leader then chooses the next
step. It keeps none of this in the record: a new leader reads from the nodes what is complete, and begins again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from holdfast_core.checkpointing.restore_point import complete_replicas
from holdfast_core.model import CoreState, Replication
from holdfast_core.recovery.ending import RESEND_S
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

_MOST_DOUBLINGS = 6
STARTS_KEPT = 8
"""Starts of generations that are remembered: replica snapshots from before them are never used."""
LOOK_S = 1.0
"""Pause between two looks at all nodes. A node's state comes once a second, and there may be thousands of nodes."""


def partners(nodes: Sequence[str], domains: Mapping[str, str]) -> dict[str, str]:
    """Return each node's partner. Every node is the partner of one other node; a single node has none.

    As many partners as possible are in another failure domain. A node without a domain is one of its own. In a circle
    of nodes that is sorted by domain, the partner is as far away as the largest domain is long, so it is outside the
    node's own. If a domain has more than half of the nodes, half of the circle serves all nodes that can be served.
    """
    if len(nodes) < 2:
        return {}
    sizes = Counter(domain for name in nodes if (domain := domains.get(name, "")))
    in_circle = sorted(nodes, key=lambda name: (not domains.get(name), domains.get(name, "")))
    shift = min(max(sizes.values(), default=1), len(nodes) // 2)
    return dict(zip(in_circle, [*in_circle[shift:], *in_circle[:shift]], strict=True))


def command(tick: Tick) -> None:
    """Have replica snapshots made if they are due; follow those that the nodes are working on."""
    if not _may_be_made(tick):
        return
    current = tick.state.replication
    if current is not None and current.generation != tick.record.generation:
        current = None
    if current is not None and tick.now < _next_look(tick, current):
        return
    nodes = [tick.state.nodes.get(name) for name in tick.record.nodes]
    members = [node for node in nodes if node is not None and node.replicas.address]
    if len(members) < len(nodes):
        return
    if current is None or current.is_over:
        _begin(tick, members, current)
    else:
        _follow(tick, members, current)


def complete_step(state: CoreState) -> int | None:
    """Return the newest step of which every rank's snapshot is on two nodes, as far as the leader knows."""
    replication = state.replication
    is_present = replication is not None and replication.generation == state.record.generation
    return replication.complete_step if replication is not None and is_present else None


def usable(tick: Tick, copies: int = 1, world_size: int = 0) -> set[tuple[int, int]]:
    """Return step and generation of the sets from which a generation can start: each rank's is on ``copies`` nodes.

    ``world_size``: that of the world whose sets are sought, if it is not the present one.
    """
    record = tick.record
    before = record.unusable_replica if record.HasField("unusable_replica") else None
    whole = complete_replicas(tick.state.members, world_size or tick.world_size, copies=copies)
    return {one for one in whole if is_in_line(record, *one) and (before is None or one[0] < before)}


def note_start(record: store.CoordinatorState) -> None:
    """Note in the line of states that the record's generation begins after its resumed step."""
    line = record.line
    if not line.starts:
        line.since_generation = max(record.generation, 1) - 1
    later = [start for start in line.starts if start.step < record.resumed_step]
    later.append(store.LineStart(generation=record.generation, step=record.resumed_step))
    for start in later[:-STARTS_KEPT]:
        line.since_generation = start.generation
    del line.starts[:]
    line.starts.extend(later[-STARTS_KEPT:])


def is_in_line(record: store.CoordinatorState, step: int, generation: int) -> bool:
    """Return whether no later generation has begun before a state that this one has reached.

    A node that had no part in such a start, because it was lost, did not drop the state. It may come back with it.
    """
    if generation >= record.generation:
        return True
    is_known = bool(record.line.starts) and generation >= record.line.since_generation
    return is_known and all(step <= start.step for start in record.line.starts if start.generation > generation)


def see_failed_start(tick: Tick) -> bool:
    """Note that a node could not load the replica snapshots from which the newest generation was to start.

    Return whether that is so. These, and newer ones, are not used again until other ones are complete.
    """
    record = tick.record
    could_not = any(_could_not_load(node, record.generation) for node in tick.state.nodes.values())
    if record.source != store.SOURCE_REPLICA or not could_not:
        return False
    if not record.HasField("unusable_replica") or record.unusable_replica > record.resumed_step:
        with tick.edit_record() as edited:
            edited.unusable_replica = record.resumed_step
    return True


def holders(tick: Tick, ranks_by_node: Mapping[str, Iterable[int]]) -> dict[str, list[store.ReplicaHolder]]:
    """Return for each node who has the replica snapshots that the generation starts from, and that it lacks itself."""
    wanted = tick.record.resumed_step, tick.record.replica_generation
    members = tick.state.members
    held = {
        name: {rank for one in node.replicas.held if (one.step, one.generation) == wanted for rank in one.ranks}
        for name, node in members.items()
    }
    lacking = {
        name: [rank for rank in ranks if rank not in held.get(name, ())] for name, ranks in ranks_by_node.items()
    }
    sought = {rank for ranks in lacking.values() for rank in ranks}
    addresses: dict[int, str] = {}
    for name, node in members.items():
        if node.replicas.address:
            addresses.update(dict.fromkeys(sought & held[name], node.replicas.address))
    return {
        name: [store.ReplicaHolder(rank=rank, address=addresses[rank]) for rank in ranks if rank in addresses]
        for name, ranks in lacking.items()
    }


def _may_be_made(tick: Tick) -> bool:
    spec = tick.state.spec
    is_wanted = spec.replicate_every_s and spec.snapshot_every and tick.state.saves and len(tick.record.nodes) > 1
    return bool(is_wanted) and not tick.record.standstill_incident and tick.state.suspicion is None


def _next_look(tick: Tick, current: Replication) -> float:
    """Return the Unix time until which there is nothing to do."""
    if current.is_over:
        # A partner that cannot be reached may stay so, and each try costs the nodes time to compress.
        doublings = min(max(current.failures - 1, 0), _MOST_DOUBLINGS)
        return current.began_unix_s + tick.state.spec.replicate_every_s * 2.0**doublings
    return current.looked_unix_s + LOOK_S


def _begin(tick: Tick, members: Sequence[store.NodeState], last: Replication | None) -> None:
    """Choose the next step and tell all nodes, unless the training loops end before it."""
    step = _step(tick, members)
    if step is None:
        return
    planned_steps = max((rank.planned_steps for rank in members[0].ranks), default=0)
    begun = Replication(
        step=step,
        generation=tick.record.generation,
        began_unix_s=tick.now,
        sent_unix_s=tick.now,
        looked_unix_s=tick.now,
        is_over=0 < planned_steps <= step,
        complete_step=_complete_step(tick, last),
        failures=0 if last is None else last.failures,
    )
    tick.state = replace(tick.state, replication=begun)
    if not begun.is_over:
        _send(tick, begun, tick.record.nodes)


def _complete_step(tick: Tick, last: Replication | None) -> int | None:
    """Return the newest step of which two nodes have each rank's snapshot: of a new leader, as the nodes show it."""
    if last is not None and last.complete_step is not None:
        return last.complete_step
    return _newest(tick, copies=2)


def _newest(tick: Tick, copies: int) -> int | None:
    return max((step for step, _ in usable(tick, copies)), default=None)


def _could_not_load(node: store.NodeState, generation: int) -> bool:
    """Return whether a generation has failed on a node because of its replica snapshots, and for no other reason.

    A node without them cannot load any.
    """
    if node.failed_generation != generation:
        return False
    return not node.HasField("replicas") or node.replicas.unusable_generation == generation


def _step(tick: Tick, members: Sequence[store.NodeState]) -> int | None:
    """Return a step ahead at whose end a snapshot is due; None before a step is timed.

    It is none that a node has worked on before: what it reports of that one would be taken for the new one.
    """
    ahead = tick.step_ahead()
    if ahead is None:
        return None
    every = tick.state.spec.snapshot_every
    step = ahead + -(ahead + 1) % every
    known = {seen for node in members for seen in (node.replicas.wanted_step, node.replicas.replicated_step)}
    while step in known:
        step += every
    return step


def _follow(tick: Tick, members: Sequence[store.NodeState], current: Replication) -> None:
    """See how far the nodes are. A node that works on it is never hurried: its partner may be slow."""
    step, current = current.step, replace(current, looked_unix_s=tick.now)
    behind = [node for node in members if node.replicas.wanted_step != step]
    if any(node.replicas.failed and node.replicas.wanted_step == step for node in members):
        current = replace(current, is_over=True, failures=current.failures + 1)
    elif behind and tick.now - current.sent_unix_s > RESEND_S:
        # Ranks that are past the step cannot make them anymore.
        is_over = any(rank.progress.step > step for node in behind for rank in node.ranks)
        current = replace(current, sent_unix_s=tick.now, is_over=is_over)
        if not is_over:
            _send(tick, current, [node.node for node in behind])
    elif not behind and all(node.replicas.replicated_step == step for node in members):
        # What counts is what the partners show: two nodes may be known by one address.
        if (step, current.generation) not in complete_replicas(tick.state.members, tick.world_size, copies=2):
            is_over = tick.now - current.sent_unix_s > tick.state.spec.replicate_every_s + RESEND_S
            failures = current.failures + is_over
            tick.state = replace(tick.state, replication=replace(current, is_over=is_over, failures=failures))
            return
        current = replace(current, is_over=True, complete_step=step, failures=0)
        if tick.record.HasField("unusable_replica"):  # these take the place of what could not be loaded
            with tick.edit_record() as record:
                record.ClearField("unusable_replica")
    tick.state = replace(tick.state, replication=current)


def _send(tick: Tick, current: Replication, nodes: Iterable[str]) -> None:
    members = tick.state.members
    kept = current.complete_step
    if kept is None:  # a set of which one copy is left is better than none
        kept = _newest(tick, copies=1)
    partner_of = partners(tick.record.nodes, {name: node.replicas.failure_domain for name, node in members.items()})

    def message(node: str) -> store.NodeCommand:
        partner = partner_of[node]
        made = store.Replicate(
            step=current.step, partner=partner, address=members[partner].replicas.address, kept_step=kept
        )
        return store.NodeCommand(replicate=made)

    tick.send(nodes, message)
