"""Asks the detectors one by one: each is timed, and one that fails does not affect the others."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.view import MissingNode, StepView, View
from holdfast_core.model import DetectorFailed, counted
from holdfast_core.recovery.restart_patience import RestartPatience
from holdfast_core.tick import Tick
from holdfast_core.world import parts_of
from holdfast_proto.v1 import store_pb2 as store


def look_at_tick(tick: Tick, names: Collection[str] = ()) -> Iterator[Finding]:
    """Yield what detectors find in the state of all ranks: those of ``names``, or all in the order of the registry."""
    view = view_of(tick)
    for name in names or tick.state.detectors:
        yield from _show(tick, name, lambda detector: detector.see_tick(view))


def look_at_step(tick: Tick, summary: store.StepSummary) -> Iterator[Finding]:
    """Yield what the detectors find in the numbers of a step."""
    step = step_view(tick, summary)
    for name in tick.state.detectors:
        yield from _show(tick, name, lambda detector: detector.see_step(step))


def step_view(tick: Tick, summary: store.StepSummary) -> StepView:
    """Return the view of a step that detectors look at."""
    return StepView(tick.now, summary, tick.state.deadlines, tick.ranks.coordinates)


def restart(tick: Tick, after_step: int) -> None:
    """Prepare all detectors for a new generation that continues after a step."""
    tick.state = replace(
        tick.state, detectors={name: _restarted(tick, name, after_step) for name in tick.state.detectors}
    )


def ask(tick: Tick, name: str, view: View) -> tuple[Finding, ...]:
    """Return what one detector finds in ``view``, without keeping its next state."""
    try:
        return tick.state.detectors[name].see_tick(view).findings
    except Exception as error:  # noqa: BLE001 (as in _show)
        tick.actions.append(DetectorFailed(name, f"{type(error).__name__}: {error}"))
        return ()


def _restarted(tick: Tick, name: str, after_step: int) -> Detector:
    """Return a detector for the new generation; a fresh one if it fails to provide that."""
    detector = tick.state.detectors[name]
    try:
        return detector.restarted(after_step)
    except Exception as error:  # noqa: BLE001 (as in _show)
        tick.actions.append(DetectorFailed(name, f"{type(error).__name__}: {error}"))
        return type(detector)()


def view_of(tick: Tick, *, suspicious: bool = False) -> View:
    """Return the view of this tick that detectors look at."""
    state = tick.state
    without_ranks = _without_ranks(tick)
    lost = {
        name: MissingNode(
            since_unix_s=state.missed_unix_s.get(name, tick.now),
            state=_last_heard(tick, name),
            has_none=name in without_ranks,
        )
        for name in tick.record.nodes
        if name not in state.nodes or name in without_ranks
    }
    present: dict[int, str] = {}
    for name, part in parts_of(state.members, state.parts).items():
        present.update(dict.fromkeys(part.ranks, name))
    gone = {rank.rank: name for name, node in lost.items() for rank in node.state.ranks}
    return View(
        now=tick.now,
        world_size=tick.world_size,
        ranks=tick.ranks,
        node_of={**gone, **present},
        missing_nodes=lost,
        deadlines=state.deadlines,
        first_exit_unix_s=state.first_exit_unix_s,
        stacks=state.stacks,
        recorders=state.recorders,
        suspicious=suspicious,
        all_stopped_unix_s=state.all_stopped_unix_s,
        several_stopped_unix_s=state.several_stopped_unix_s,
        pause_patience_s=RestartPatience.of(state.spec, tick.record).suspended_s,
        is_first_start=not tick.record.trained and not tick.record.restarts_total and state.spec.mode == store.MODE_ACT,
    )


def _without_ranks(tick: Tick) -> set[str]:
    """Return the members whose agents report an older generation than the one that trains.

    Such an agent could not adopt the ranks of the one before it. A node that still starts its ranks reports the same,
    but then the ranks of the other nodes wait for it, and have completed no step. Launchers number by themselves.
    """
    if tick.record.phase != store.RUN_PHASE_RUNNING or tick.observes or tick.ranks.untrained:
        return set()
    nodes, generation = tick.state.nodes, tick.record.generation
    return {name for name in tick.record.nodes if name in nodes and nodes[name].generation < generation}


def _last_heard(tick: Tick, name: str) -> store.NodeState:
    """Return the last state that a missing node reported.

    If it has reported nothing of this generation, the state says only which ranks it is to have.
    """
    generation, per_node = tick.record.generation, tick.state.spec.ranks_per_node
    heard = tick.state.heard_of.get(name)
    if heard is not None and heard.generation == generation:
        return heard
    first = list(tick.record.nodes).index(name) * per_node
    numbers = _unclaimed(tick) if tick.observes else range(first, first + per_node)
    ranks = [store.RankState(rank=number) for number in numbers]
    missed_unix_s = tick.state.missed_unix_s.get(name, tick.now)
    return store.NodeState(node=name, generation=generation, ranks=ranks, reported_unix_s=missed_unix_s)


def _unclaimed(tick: Tick) -> list[int]:
    """Return the ranks of the world that no node of an observed run reports; [] if several nodes may have them."""
    if sum(name not in tick.state.nodes for name in tick.record.nodes) > 1:
        return []
    return [number for number in range(tick.world_size) if number not in tick.ranks]


def _show(tick: Tick, name: str, look: Callable[[Detector], DetectorResult]) -> tuple[Finding, ...]:
    try:
        with tick.timed(name):
            result = look(tick.state.detectors[name])
    except Exception as error:  # noqa: BLE001 (the other detectors must still be asked; the shell logs and counts it)
        tick.actions.append(DetectorFailed(name, f"{type(error).__name__}: {error}"))
        return ()
    tick.state = replace(tick.state, detectors={**tick.state.detectors, name: result.next})
    for anomaly in result.anomalies:
        totals = tick.state.totals
        tick.state = replace(tick.state, totals=replace(totals, anomalies=counted(totals.anomalies, anomaly)))
    for ending in result.endings:
        incidents.resolve_noted(tick, ending.kind, ending.what, ending.culprits)
        if ending.culprits:
            tick.forget(incidents.reported_key(ending.kind, ending.culprits))
    return result.findings
