"""Shows the detectors what there is to see, one by one: each is timed, and one that fails harms no other."""

from collections.abc import Callable, Collection, Iterator

from holdfast_daemon.core.detectors.framework import Detector, Seen, Sight
from holdfast_daemon.core.detectors.view import LostNode, StepView, View
from holdfast_daemon.core.model import DetectorFailed
from holdfast_daemon.core.restart_patience import RestartPatience
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store


def look_at_turn(turn: Turn, names: Collection[str] = ()) -> Iterator[Seen]:
    """Yield what the detectors see in the state of all ranks, in the registry's order; those of ``names``, or all."""
    view = view_of(turn)
    for name in names or turn.state.detectors:
        yield from _show(turn, name, lambda detector: detector.see_turn(view))


def look_at_step(turn: Turn, summary: store.StepSummary) -> Iterator[Seen]:
    """Yield what the detectors see in the numbers of a step."""
    coordinates = {number: dict(rank.coordinates) for number, rank in turn.ranks.items()}
    step = StepView(turn.now, summary, turn.state.deadlines, coordinates)
    for name in turn.state.detectors:
        yield from _show(turn, name, lambda detector: detector.see_step(step))


def restart(turn: Turn, after_step: int) -> None:
    """Tell all detectors of a new generation."""
    turn.update(detectors={name: _restarted(turn, name, after_step) for name in turn.state.detectors})


def ask(turn: Turn, name: str, view: View) -> tuple[Seen, ...]:
    """Return what one detector finds in ``view``, and leave it as it was."""
    try:
        return turn.state.detectors[name].see_turn(view).seen
    except Exception as error:  # noqa: BLE001 (as in _show)
        turn.actions.append(DetectorFailed(name, f"{type(error).__name__}: {error}"))
        return ()


def _restarted(turn: Turn, name: str, after_step: int) -> Detector:
    """Return a detector that knows of the new generation; a fresh one if it fails."""
    detector = turn.state.detectors[name]
    try:
        return detector.restarted(after_step)
    except Exception as error:  # noqa: BLE001 (as in _show)
        turn.actions.append(DetectorFailed(name, f"{type(error).__name__}: {error}"))
        return type(detector)()


def view_of(turn: Turn, *, suspicious: bool = False) -> View:
    """Return what detectors are shown of this turn."""
    state = turn.state
    lost = {
        name: LostNode(since_unix_s=state.missed_unix_s.get(name, turn.now), state=_last_heard(turn, name))
        for name in turn.record.nodes
        if name not in state.nodes
    }
    present = {rank.rank: name for name, node in state.members.items() for rank in node.ranks}
    gone = {rank.rank: name for name, node in lost.items() for rank in node.state.ranks}
    return View(
        now=turn.now,
        world_size=turn.world_size,
        ranks=turn.ranks,
        node_of={**gone, **present},
        lost_nodes=lost,
        deadlines=state.deadlines,
        first_exit_unix_s=state.first_exit_unix_s,
        stacks=state.stacks,
        suspicious=suspicious,
        all_stopped_unix_s=state.all_stopped_unix_s,
        several_stopped_unix_s=state.several_stopped_unix_s,
        pause_patience_s=RestartPatience.of(state.spec, turn.record).standing_s,
    )


def _last_heard(turn: Turn, name: str) -> store.NodeState:
    """Return the last state of a node; of one that has told nothing of this generation, which ranks it is to have."""
    generation, per_node = turn.record.generation, turn.state.spec.ranks_per_node
    heard = turn.state.heard_of.get(name)
    if heard is not None and heard.generation == generation:
        return heard
    first = list(turn.record.nodes).index(name) * per_node
    ranks = [store.RankState(rank=number) for number in range(first, first + per_node)]
    missed_unix_s = turn.state.missed_unix_s.get(name, turn.now)
    return store.NodeState(node=name, generation=generation, ranks=ranks, reported_unix_s=missed_unix_s)


def _show(turn: Turn, name: str, look: Callable[[Detector], Sight]) -> tuple[Seen, ...]:
    try:
        with turn.timed(name):
            sight = look(turn.state.detectors[name])
    except Exception as error:  # noqa: BLE001 (whatever it is, the other detectors go on; the shell logs and counts it)
        turn.actions.append(DetectorFailed(name, f"{type(error).__name__}: {error}"))
        return ()
    turn.update(detectors={**turn.state.detectors, name: sight.next})
    for anomaly in sight.anomalies:
        turn.update(totals=turn.state.totals.count("anomalies", anomaly))
    return sight.seen
