"""Helpers that show detectors the state of ranks, tick by tick."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store

START_UNIX_S = 1_000_000.0


def tick(now: float, ranks: Iterable[store.RankState], node_of: Mapping[int, str] | None = None) -> View:
    """Return the state of ranks as a detector sees it. By default all ranks are on one node."""
    by_number = {rank.rank: rank for rank in ranks}
    return View(
        now=now,
        world_size=len(by_number),
        ranks=by_number,
        node_of=node_of or dict.fromkeys(by_number, "n0"),
        missing_nodes={},
        deadlines=Deadlines.for_preset(store.PRESET_FAST),
        first_exit_unix_s=0.0,
        stacks={},
    )


def ticks(
    count: int, ranks: int, state: Callable[[int, int], store.RankState], *, every_s: float = 1.0
) -> Iterator[View]:
    """Yield ticks. ``state(rank, tick)`` returns a rank's state without its number."""
    for number in range(count):
        states = [state(rank, number) for rank in range(ranks)]
        for rank, of_rank in enumerate(states):
            of_rank.rank = rank
        yield tick(START_UNIX_S + number * every_s, states)


def watch(detector: Detector, views: Iterable[View]) -> tuple[Detector, list[store.Verdict]]:
    """Return the detector after ticks, and its verdicts."""
    verdicts = []
    for view in views:
        result = detector.see_tick(view)
        detector = result.next
        verdicts += [finding.verdict for finding in result.findings]
    return detector, verdicts
