"""Observed runs, which another launcher starts: Holdfast follows what the nodes report.

It ends no rank but those of hang_aborts.py. With ``--restore`` it gives all ranks their state, and they wait for it:
ranks of our own are started with their state, but these exist before it is chosen. Each says in its hello that it
waits. Once all ranks of the world have said hello, the leader chooses the newest state that all of them can have,
exactly as for ranks of our own. The nodes prepare it and pass it on. If a node cannot, the ranks wait on, and the
leader chooses again.
"""

from collections.abc import Mapping
from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import checkpoint_reads, replicas
from holdfast_core.model import Action, CoreState, Launch, Send
from holdfast_core.naming import STOPPED_BY_OPERATOR
from holdfast_core.recovery import hang_aborts, new_generation, resized_state
from holdfast_core.recovery.ending import RESEND_S, finish
from holdfast_core.recovery.restart_patience import uncertain_restarts
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

_SURE_AFTER_S = 2.0
"""Time for which a node must say that ranks of an earlier launch live: its first state may be older than their end."""

_BEFORE_TRAINING = (store.RUN_PHASE_WAITING, store.RUN_PHASE_STARTING)


def see_launches(tick: Tick, nodes: Mapping[str, store.NodeState]) -> tuple[int, dict[str, store.NodeState]]:
    """Return the run's generation as the nodes show it, and their states with that number.

    The numbers of the nodes may differ: torchrun counts a restart only on nodes on which ranks had failed. So a new
    generation begins when a node replaces its ranks, or when a node joins a world that is complete. The others belong
    to it as soon as they have replaced theirs.

    That is a guess: a node may replace its ranks twice, or a spare join, before a world is complete, and a new leader
    does not know which ranks belong to it. If the ranks that live are a whole world that starts, they are a generation.
    """
    state, spec = tick.state, tick.state.spec
    running = {name: node for name, node in nodes.items() if _runs(node, spec)}
    launches = {
        name: Launch(node.generation, {rank.rank: rank.pid for rank in node.ranks}, node.reported_unix_s)
        for name, node in running.items()
    }
    present, earlier = dict(state.launches), dict(state.earlier_launches)
    generation = state.record.generation
    if not generation:
        if len(running) < spec.nodes and not _is_complete(launches, running):
            return 0, dict(nodes)
        # Ranks that have got a state have the number that an earlier leader gave them: the store has lost its record.
        generation = max(map(_least_number, running.values()))
        present = launches
    elif state.record.phase not in ENDED:
        present = present or launches  # a new leader takes what runs for the generation
        new = {
            name: launch
            for name, launch in launches.items()
            if (name not in state.launches and _waits_again(running[name], generation))
            or not (launch.continues(present.get(name)) or launch.continues(earlier.get(name)))
        }
        if new:
            is_again = any(name in present or _waits_again(running[name], generation) for name in new)
            if is_again or _is_complete(present, state.nodes):
                generation = max(generation + 1, *(_least_number(running[name]) for name in new))
                earlier, present = {**earlier, **present}, {}
            present = {**present, **new}
        # Nothing is chosen any more for a generation that has trained or failed: ranks that wait are of the next.
        is_over = generation == state.record.generation and state.record.phase not in _BEFORE_TRAINING
        is_next = is_over and all(map(_waits, running.values()))
        is_starting = state.record.phase == store.RUN_PHASE_STARTING
        whole = _whole_world(running, earlier) if is_starting or is_next else set()
        if whole:
            generation += is_next
            earlier.update(present)
            present = {name: launches[name] for name in whole}
        earlier = {name: one for name, one in earlier.items() if name not in present}
        # A launch grows while its ranks say hello.
        present = {name: _newest(one, launches.get(name)) for name, one in present.items()}
    tick.state = replace(state, launches=present, earlier_launches=earlier)
    numbered = {name: _numbered(node, generation - (name in earlier)) for name, node in running.items()}
    return generation, {**_left(tick.state, generation, nodes), **nodes, **numbered}


def follow(tick: Tick, generation: int) -> None:
    """Enter a generation that the nodes have begun, and note which nodes are part of it."""
    record = tick.record
    if not tick.observes or not generation or record.phase in ENDED:
        return
    launches = tick.state.launches
    in_rank_order = sorted(launches, key=lambda name: min(launches[name].pids, default=0))
    if generation == record.generation:
        missing = [name for name in record.nodes if name not in launches and name not in tick.state.earlier_launches]
        if launches.keys() | set(missing) != set(record.nodes):
            with tick.edit_record() as edited:
                edited.nodes[:] = [*in_rank_order, *missing]
        return
    with tick.edit_record() as edited:
        edited.nodes[:] = in_rank_order
        edited.generation = generation
        edited.source = store.SOURCE_UNSPECIFIED
        edited.restarts_without_progress = 0
        edited.resumed_step = -1
        # The budget of aborts counts until the run is past the step that it has reached before.
        edited.step_at_restart = max(record.step_at_restart, record.newest_step) if tick.state.ends_hung_ranks else -1
        edited.uncertain_restarts = uncertain_restarts(record)
        edited.newest_step = record.newest_step if tick.state.saves else -1
        edited.restarts_total = record.restarts_total + (record.generation > 0)
        edited.leave_by_unix_s = 0.0
    tick.state = replace(tick.state, launcher_codes={})
    hang_aborts.see_generation(tick, generation)
    tick.enter(store.RUN_PHASE_STARTING)
    new_generation.forget(tick, after_step=-1)
    if not record.generation:
        ledger.adopt(tick)


def choose_state(tick: Tick) -> bool:
    """Choose the state for a world that waits for it. Return whether the world still waits, or is refused.

    Commands are repeated until all nodes have passed the state on.
    """
    record = tick.record
    if not tick.state.saves or not tick.ranks:
        return False
    if record.source == store.SOURCE_UNSPECIFIED:
        if not _is_due(tick):
            return False  # ranks that are judged as those of any start
        if resized_state.resize(tick):
            new_generation.begin(tick)
        return True
    failed = next((node for node in tick.state.members.values() if node.failed_generation == record.generation), None)
    if failed is not None:
        _choose_again(tick, failed.failure)
        return True
    behind = [node.node for node in tick.state.members.values() if _waits(node)]
    if behind and _all_live(tick) and tick.now - tick.state.sent_unix_s > RESEND_S:
        new_generation.send_start(tick, behind, tick.world_size)
    return bool(behind)  # a large checkpoint takes long to fetch, and the ranks do nothing meanwhile


def own_generation(tick: Tick, node: str) -> int:
    """Return the number that a node itself gives to its ranks of the present generation."""
    launch = tick.state.launches.get(node)
    return tick.record.generation if launch is None else launch.generation


def in_own_numbers(tick: Tick) -> list[Action]:
    """Return the actions of a tick. A command about the present generation has the number that its node gives it."""
    for action in tick.actions:
        if isinstance(action, Send) and action.command.generation == tick.record.generation:
            action.command.generation = own_generation(tick, action.node)
    return tick.actions


def has_left(tick: Tick) -> bool:
    """Return whether all ranks of the generation that are known have ended."""
    return all(rank.HasField("exit") for rank in tick.ranks.values())


def see_end(tick: Tick) -> None:
    """Wait until all ranks have ended. However they end, an operator has announced it: it is no incident."""
    if tick.ranks and all(rank.HasField("exit") for rank in tick.ranks.values()):
        incidents.close(tick, store.INCIDENT_STATE_FAILED, STOPPED_BY_OPERATOR)
        finish(tick, store.RUN_PHASE_FINISHED, STOPPED_BY_OPERATOR)


def watch_on(tick: Tick) -> None:
    """Judge the ranks again: they were to end, and have not."""
    with tick.edit_record() as record:
        record.leave_by_unix_s = 0.0
    tick.enter(store.RUN_PHASE_RUNNING)


def _runs(node: store.NodeState, spec: store.RunSpec) -> bool:
    return node.instance == spec.instance and node.generation > 0


def _is_complete(launches: Mapping[str, Launch], nodes: Mapping[str, store.NodeState]) -> bool:
    """Return whether all ranks of a world have said hello."""
    size = max((nodes[name].world_size for name in launches if name in nodes), default=0)
    return 0 < size <= sum(len(launch.pids) for launch in launches.values())


def _whole_world(running: Mapping[str, store.NodeState], earlier: Mapping[str, Launch]) -> set[str]:
    """Return the nodes whose living ranks are a whole world; none: the world lacks ranks, or it is not sure.

    Ranks of an earlier launch may have ended, and their node has not said so yet. So all ranks are equally far, and
    such a node says for a while that its ranks live.
    """
    living = [(node, rank) for node in running.values() for rank in node.ranks if not rank.HasField("exit")]
    sizes = {node.world_size for node, _ in living}
    is_whole = len(sizes) == 1 and sorted(rank.rank for _, rank in living) == list(range(*sizes))
    is_even = len({(rank.awaits_start, rank.steps_done > 0) for _, rank in living}) == 1
    whole = {node.node for node, _ in living}
    is_sure = all(
        running[name].reported_unix_s > earlier[name].reported_unix_s + _SURE_AFTER_S for name in whole & earlier.keys()
    )
    return whole if is_whole and is_even and is_sure else set()


def _newest(known: Launch, launch: Launch | None) -> Launch:
    return known if launch is None or not launch.continues(known) else launch


def _numbered(node: store.NodeState, generation: int) -> store.NodeState:
    if node.generation == generation:
        return node
    numbered = store.NodeState()
    numbered.CopyFrom(node)
    numbered.generation = generation
    return numbered


def _left(state: CoreState, generation: int, nodes: Mapping[str, store.NodeState]) -> dict[str, store.NodeState]:
    """Return the last states of nodes that have left after all their ranks had ended. They are not lost.

    Their launchers end one after another, and each takes its agent with it.
    """
    if state.record.phase in ENDED:
        return {}  # the run is over once no node is left
    return {
        name: heard
        for name, heard in state.heard_of.items()
        if name not in nodes
        and name not in state.earlier_launches
        and heard.generation == generation
        and heard.ranks
        and all(rank.HasField("exit") for rank in heard.ranks)
    }


def _waits(node: store.NodeState) -> bool:
    return any(rank.awaits_start for rank in node.ranks)


def _waits_again(node: store.NodeState, generation: int) -> bool:
    """Return whether a node's ranks wait although it has passed on the state of this generation, or of a later one.

    They are newer than those that got it. A leader that does not know those has no other sign of that.
    """
    return node.restored_generation >= generation and _all_wait(node)


def _least_number(node: store.NodeState) -> int:
    """Return the least number that the generation of a node's ranks can have."""
    return max(node.generation, node.restored_generation + _all_wait(node))


def _all_wait(node: store.NodeState) -> bool:
    living = [rank for rank in node.ranks if not rank.HasField("exit")]
    return bool(living) and all(rank.awaits_start for rank in living)


def _is_due(tick: Tick) -> bool:
    """Return whether all ranks are known, none has failed, and one waits. The others may have no state at all."""
    return _all_live(tick) and any(rank.awaits_start for rank in tick.ranks.values())


def _all_live(tick: Tick) -> bool:
    """Return whether all ranks are known, and none has failed: else the launcher replaces those that wait, too."""
    ranks = tick.ranks.values()
    return len(ranks) == tick.world_size and all(rank.exit.finished for rank in ranks if rank.HasField("exit"))


def _choose_again(tick: Tick, reason: str) -> None:
    """Choose another state, or the same one later: a node could not prepare the one that was chosen."""
    if replicas.see_failed_start(tick):
        incidents.add_line_to_open(tick, f"generation {tick.record.generation} could not start: {reason}")
        new_generation.begin(tick)
        return
    if checkpoint_reads.may_be_unreadable(tick):
        return
    unread = checkpoint_reads.failure(tick)
    if unread:
        if checkpoint_reads.may_try_again(tick, unread):
            new_generation.begin(tick)
        return
    incidents.add_line_to_open(tick, f"generation {tick.record.generation} could not start: {reason}")
    tries = tick.record.restarts_without_progress + 1
    with tick.edit_record() as record:
        record.restarts_without_progress = tries
    if tries > tick.state.spec.restarts_without_progress:
        checkpoint_reads.refuse(tick, reason)
        return
    new_generation.begin(tick)
