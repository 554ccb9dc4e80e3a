"""The corpus: which fault strikes which rank of which layout, in which phase. The same seed gives the same corpus."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.detection_ranks.groups import parse_layout
from holdfast_hooks import Phase

LAYOUTS = (
    "dp4",
    "dp2tp2",
    "pp2dp2",
    "pp2tp2",
    "dp2ep2",
    "pp4",
    "tp4",
    "ep4",
    "pp2dp2tp2",
    "dp4ep2",
    "trainer:pp2dp2",
    "trainer:dp2tp2",
    "trainer:dp4",
)
"""Axes and sizes, outermost first. ``trainer:`` stands for ranks of the reference trainer, not of detection_ranks. Its
layout ``dp4`` shards under ZeRO over two ranks, and has two copies of each shard."""

ZERO = "trainer:dp4"

DUPLICATE = "duplicate-samples"
"""A trainer that trains again on samples of an earlier step. It is in no catalogue of faults."""

DEATHS = ("kill", "segfault", "exception", "exit-0", "out-of-memory")
STUCK = ("stop", "infinite-loop", "gil-held", "deadlock", "frozen-disk")
ORDER = ("skipped-collective", "extra-collective", "wrong-shape", "wrong-order")
NOTED = ("data-stall", "slow", "nan-gradient", "bit-flip", DUPLICATE, "clock-jump")
"""Faults after which the run continues."""

_WEIGHTS = {
    **dict.fromkeys((*DEATHS, *STUCK), 4),
    **dict.fromkeys((*ORDER, "lost-message", "data-stall"), 4),
    **dict.fromkeys(("nan-gradient", "bit-flip", DUPLICATE), 3),
    **dict.fromkeys(("slow", "clock-jump"), 2),
}
FAULTS = tuple(_WEIGHTS)
_ANYWHERE = (Phase.DATA, Phase.FORWARD_BACKWARD, Phase.OPTIMIZER)
_WITH_CALLS = (Phase.FORWARD_BACKWARD, Phase.OPTIMIZER)


@dataclass(frozen=True)
class Case:
    """One fault to inject."""

    layout: str
    fault: str
    rank: int
    phase: Phase | None
    """Phase in which the fault strikes. None: the fault itself decides."""
    seed: int

    @property
    def waits_for_data(self) -> bool:
        """Whether the rank stands still where it should have got its batch."""
        in_data = self.phase == Phase.DATA and self.fault in ("infinite-loop", "deadlock", "frozen-disk")
        return in_data or self.fault == "data-stall"


def ranks_of(layout: str) -> int:
    """Return the number of ranks of a layout."""
    ranks = 1
    for size in parse_layout(layout.removeprefix("trainer:")).values():
        ranks *= size
    return ranks


def ranks_of_stage(layout: str) -> int:
    """Return the number of ranks of a layout that do the same work."""
    return ranks_of(layout) // parse_layout(layout.removeprefix("trainer:"))["pp"]


def applies(fault: str, layout: str) -> bool:
    """Return whether a fault can show in a layout."""
    sizes = parse_layout(layout.removeprefix("trainer:"))
    if layout.startswith("trainer:") and fault in (*NOTED, *ORDER):
        return (layout, fault) == (ZERO, "bit-flip")  # only Holdfast knows the trainer's numbers and calls
    match fault:
        case "lost-message":
            return sizes["pp"] > 1
        case "wrong-order":
            return sum(size > 1 for size in sizes.values()) > 1  # a single axis is the world's group
        case "bit-flip":
            return sizes["dp"] > 2  # if two differ, nothing shows which one is right
    return True


def corpus(*, seed: int, cases: int, layouts: Sequence[str], faults: Sequence[str]) -> dict[str, list[Case]]:
    """Return layout -> its cases, in the order in which they are to be injected."""
    chance = random.Random(seed)
    pairs = [
        (layout, fault)
        for fault in faults
        for layout in layouts
        if applies(fault, layout)
        for _ in range(_WEIGHTS[fault])
    ]
    chance.shuffle(pairs)
    while len(pairs) < cases:
        pairs += pairs[: cases - len(pairs)]
    chosen = [_case(layout, fault, chance) for layout, fault in pairs[:cases]]
    by_layout = {layout: [case for case in chosen if case.layout == layout] for layout in layouts}
    return {layout: list(_alternating(of_layout)) for layout, of_layout in by_layout.items() if of_layout}


def _case(layout: str, fault: str, chance: random.Random) -> Case:
    phase: Phase | None
    if fault in (*ORDER, "lost-message"):
        phase = chance.choice(_WITH_CALLS) if fault != "lost-message" else Phase.FORWARD_BACKWARD
    elif fault in (*DEATHS, *STUCK):
        phase = chance.choice(_ANYWHERE)
    else:
        phase = None
    return Case(layout, fault, chance.randrange(ranks_of(layout)), phase, chance.getrandbits(31))


def _alternating(cases: list[Case]) -> Iterator[Case]:
    """Yield noted cases and stopping cases in turn, as long as there are both.

    A noted case can leave its generation harmed, and a stopping one ends it.
    """
    noted = [case for case in cases if case.fault in NOTED]
    stopping = [case for case in cases if case.fault not in NOTED]
    while noted or stopping:
        if noted:
            yield noted.pop()
        if stopping:
            yield stopping.pop()
