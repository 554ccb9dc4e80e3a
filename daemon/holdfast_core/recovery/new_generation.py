"""The beginning of a generation: from which state it starts, and what is forgotten of the one before."""

from collections.abc import Mapping
from dataclasses import replace

from holdfast_core import detection, incidents
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import checkpoint_failures, checkpoint_reads, proven_steps, replicas, restore_point
from holdfast_core.recovery import standstills
from holdfast_core.recovery.bad_loss import roll_back
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

_WHERE = {
    store.SOURCE_SEED: "the seed",
    store.SOURCE_MEMORY: "memory",
    store.SOURCE_REPLICA: "replica snapshots",
    store.SOURCE_CHECKPOINT: "a checkpoint",
}


def begin(tick: Tick) -> None:
    """Have every node start its ranks from the newest state that all of them can have."""
    _see_history(tick)
    standstills.drop(tick, "another generation begins")
    record = tick.record
    bad_from, rolls_back = roll_back.bad_from(tick), record.HasField("roll_back")
    point = choose(tick)
    if rolls_back and point is None:
        checkpoint_reads.refuse_bad(tick, record.roll_back.before_step)
        return
    if point is None:
        checkpoint_reads.refuse_damaged(tick)
        return
    if rolls_back:
        point = roll_back.with_history(tick, point)
    of_states = max((_newest_number(node) for node in tick.state.nodes.values()), default=0)
    # Without a state of ours, the script may have restored one of its own. The hooks then count its steps from 0.
    may_count_anew = tick.state.spec.auto and not tick.observes
    counts_anew = may_count_anew and point.source == store.SOURCE_SEED and record.generation > 0
    # Another launcher has begun this generation already, and only its state was to be chosen.
    is_begun = tick.observes and record.source == store.SOURCE_UNSPECIFIED
    world_size = tick.world_size  # the nodes of an observed run show it under the number before
    with tick.edit_record() as edited:
        edited.generation = max(record.generation + (not is_begun), of_states + 1)
        edited.source = point.source
        edited.replica_generation = point.replica_generation
        edited.resumed_step = point.step
        replicas.note_start(edited)
        edited.step_at_restart = record.newest_step
        edited.newest_step = -1 if counts_anew else max(record.newest_step, point.step)
        edited.counts_anew = counts_anew
    roll_back.begin_generation(tick)
    if point.history is not None:
        _begin_history(tick, point.history)
    proven_steps.begin_generation(tick)
    tick.enter(store.RUN_PHASE_STARTING)
    forget(tick, after_step=point.step)
    after = "" if point.step < 0 else f" after step {point.step}"
    where_from = "what the script itself restores" if tick.record.counts_anew else _WHERE[point.source]
    if not record.failed_reads:  # else this is one of many attempts to read a checkpoint, and one line is enough
        start = f"generation {tick.record.generation} starts from {where_from}{after}"
        if rolls_back:
            start += roll_back.left_out_line(tick)
        elif bad_from is not None and point.step < bad_from:
            start += ", because no finite loss has followed the newer states"
        incidents.add_line_to_open(tick, start)
        checkpoint_failures.passed_over(tick, point.passed_over, f"{start} instead")
    send_start(tick, list(tick.record.nodes), world_size)


def choose(tick: Tick, world_size: int = 0) -> restore_point.RestorePoint | None:
    """Return the state to start from; None if there are some, and none can be used.

    ``world_size``: that of the world whose state is sought, if it is not the present one.
    """
    record, world_size = tick.record, world_size or tick.world_size
    is_resized = record.resize.world_size > 0  # what is in memory is of a world of another size
    return restore_point.choose(
        tick.state.members,
        world_size,
        record.unreadable_checkpoints,
        tick.now,
        roll_back.bad_from(tick),
        replicas=() if is_resized else replicas.usable(tick, world_size=world_size),
        is_strict=record.HasField("roll_back"),
        is_in_memory=not is_resized,
    )


def send_start(tick: Tick, nodes: list[str], world_size: int) -> None:
    """Have nodes start their ranks of the present generation, or give its state to ranks that wait for it."""
    record, per_node = tick.record, tick.state.spec.ranks_per_node
    first_rank = {name: index * per_node for index, name in enumerate(record.nodes)}
    holders = _holders(tick, nodes, first_rank) if record.source == store.SOURCE_REPLICA else {}

    def command(node: str) -> store.NodeCommand:
        start = store.StartGeneration(
            first_rank=first_rank[node],
            ranks=per_node,
            world_size=world_size,
            rendezvous_node=record.nodes[0],
            source=record.source,
            step=record.resumed_step,
            history=record.history if record.HasField("history") else None,
            replica_generation=record.replica_generation,
            replica_holders=holders.get(node),
            left_out=record.left_out,
        )
        if tick.observes:  # the node knows which of the launcher's ranks it has
            start.first_rank = start.ranks = 0
            start.run_generation = record.generation
            start.pid = _lowest_pid(tick, node)
        return store.NodeCommand(start=start)

    tick.send(nodes, command)


def _lowest_pid(tick: Tick, node: str) -> int:
    shown = tick.state.members.get(node, store.NodeState())
    return min(((rank.rank, rank.pid) for rank in shown.ranks), default=(0, 0))[1]


def _holders(tick: Tick, nodes: list[str], first_rank: Mapping[str, int]) -> dict[str, list[store.ReplicaHolder]]:
    per_node, members = tick.state.spec.ranks_per_node, tick.state.members
    if tick.observes:
        here = {name: [rank.rank for rank in members[name].ranks] for name in nodes if name in members}
    else:
        here = {name: [*range(first_rank[name], first_rank[name] + per_node)] for name in nodes}
    return replicas.holders(tick, here)


def forget(tick: Tick, after_step: int) -> None:
    """Forget what is known of the ranks of the generation before; the new one continues after ``after_step``."""
    tick.state = replace(
        tick.state,
        start_waits_since_unix_s=0.0,
        first_exit_unix_s=0.0,
        reported_once={},
        counted_steps={},
        pending_steps={},
        suspicion=None,
        gathered_unix_s=0.0,
        stacks={},
        recorders={},
        heard_of={},
        all_stopped_unix_s=0.0,
        several_stopped_unix_s=0.0,
        deadlines=tick.state.deadlines.new_generation(),
    )
    ledger.begin_generation(tick)
    detection.restart(tick, after_step)


def _newest_number(node: store.NodeState) -> int:
    """Return the newest generation of which a node has a state that a start can use. No number is used twice."""
    return max(node.checkpoint_generation, *(one.generation for one in node.replicas.held), 0)


def _begin_history(tick: Tick, history: store.History) -> None:
    """Let the next checkpoints belong to a new history."""
    with tick.edit_record() as record:
        record.history.CopyFrom(history)
        record.history.left_out.extend(record.left_out)
        record.history_is_known = False


def _see_history(tick: Tick) -> None:
    """Forget unreadable checkpoints of an earlier history, once the nodes know the newest one.

    Steps after the start of a history have checkpoints of their own in it, which may well be readable.
    """
    present = restore_point.present_history(tick.state.members)
    if tick.record.history_is_known or not tick.record.HasField("history") or present < tick.record.history.number:
        return
    with tick.edit_record() as record:
        record.history_is_known = True
        still_there = [step for step in record.unreadable_checkpoints if step <= record.history.parent_step]
        record.unreadable_checkpoints[:] = still_there
