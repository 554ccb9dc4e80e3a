"""Observed runs, which another launcher starts: Holdfast follows what the nodes report, and sends no commands."""

from collections.abc import Mapping

from holdfast_daemon.core.accounting import ledger
from holdfast_daemon.core.model import ranks_of
from holdfast_daemon.core.naming import STOPPED_BY_OPERATOR
from holdfast_daemon.core.recovery import new_generation
from holdfast_daemon.core.recovery.ending import ENDED, finish
from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store


def follow(tick: Tick, before: Mapping[int, store.RankState]) -> None:
    """Follow the nodes to the generation that all of them report. ``before``: the ranks of the last tick."""
    spec, record = tick.state.spec, tick.record
    running = {name: node for name, node in tick.state.nodes.items() if _runs(node, spec)}
    if not tick.observes or record.phase in ENDED or len(running) < spec.nodes:
        return
    generation = max(node.generation for node in running.values())
    ranks = ranks_of(running, generation)
    # A launcher may count its starts from 0 again, so that only the processes tell two generations apart.
    is_replaced = any(before[number].pid != rank.pid for number, rank in ranks.items() if number in before)
    if generation == record.generation and not is_replaced:
        return
    in_rank_order = sorted(running, key=lambda name: min((rank.rank for rank in running[name].ranks), default=0))
    with tick.edit_record() as edited:
        edited.nodes[:] = in_rank_order
        edited.generation = generation
        edited.resumed_step = -1
        edited.step_at_restart = -1
        edited.newest_step = -1
        edited.restarts_total = record.restarts_total + (record.generation > 0)
        edited.leave_by_unix_s = 0.0
    tick.enter(store.RUN_PHASE_STARTING)
    new_generation.forget(tick, after_step=-1)
    if not record.generation:
        ledger.adopt(tick)


def see_end(tick: Tick) -> None:
    """Wait until all ranks have ended. However they end, an operator has announced it: it is no incident."""
    if tick.ranks and all(rank.HasField("exit") for rank in tick.ranks.values()):
        finish(tick, store.RUN_PHASE_FINISHED, STOPPED_BY_OPERATOR)


def watch_on(tick: Tick) -> None:
    """Judge the ranks again: they were to end, and have not."""
    with tick.edit_record() as record:
        record.leave_by_unix_s = 0.0
    tick.enter(store.RUN_PHASE_RUNNING)


def _runs(node: store.NodeState, spec: store.RunSpec) -> bool:
    return node.instance == spec.instance and node.generation > 0
