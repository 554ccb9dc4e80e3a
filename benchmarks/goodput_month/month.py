"""One month of a job, fault by fault. Which faults come, and what each costs, is given."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MONTH_S = 30 * 86_400.0
PRODUCTIVE, REPEATED, SAVING = "productive", "repeated steps", "saving"


@dataclass(frozen=True)
class MonthFault:
    """A fault at a moment of the month."""

    at_s: float
    kind: str


@dataclass(frozen=True)
class JobCosts:
    """What a fault costs under one way to run a job, and what it pays to be able to continue."""

    name: str
    state_every_s: float
    """Training between two states from which the job can continue."""
    saving_share: float
    """Time for all kinds of saving, and for hooks, relative to the time of training."""
    pauses: Mapping[str, Mapping[str, float]]
    """Kind of fault -> part of the time from the fault to the next step -> seconds, in this order."""
    kept_after_s: float = 0.0
    """Training until a state is complete."""
    copied_after_s: float = 0.0
    """Training until a state is safe from the loss of its node."""
    empty_memory: frozenset[str] = frozenset()
    """Kinds of faults that take the memory of a node along."""


def month_faults(between_s: float, shares: Mapping[str, float], dice: random.Random) -> Iterator[MonthFault]:
    """Yield the faults of a month: ``between_s`` apart on average, and independent of each other."""
    kinds, weights = list(shares), list(shares.values())
    at_s = dice.expovariate(1.0 / between_s)
    while at_s < MONTH_S:
        yield MonthFault(at_s, dice.choices(kinds, weights)[0])
        at_s += dice.expovariate(1.0 / between_s)


def spend_month(costs: JobCosts, faults: Sequence[MonthFault]) -> dict[str, float]:
    """Return use -> seconds of a month. All uses together are the month.

    A fault in the pause after another one begins that pause anew. Time counts as productive when a step is done for
    the first time, and as repeated when it is done again: so a fault costs what it undoes as soon as that is redone.
    """
    spent = dict.fromkeys((PRODUCTIVE, REPEATED, SAVING), 0.0)
    now_s = position_s = reached_s = kept_s = copied_s = 0.0
    pause: Mapping[str, float] = {}
    for fault in (*faults, None):
        left_s = (fault.at_s if fault else MONTH_S) - now_s
        for part, seconds in pause.items():
            spent[part] = spent.get(part, 0.0) + min(left_s, seconds)
            left_s -= min(left_s, seconds)
        trained_s = left_s / (1.0 + costs.saving_share)
        repeated_s = min(trained_s, reached_s - position_s)
        spent[SAVING] += left_s - trained_s
        spent[REPEATED] += repeated_s
        spent[PRODUCTIVE] += trained_s - repeated_s
        position_s += trained_s
        reached_s = max(reached_s, position_s)
        if fault:
            copied_s = max(copied_s, _newest(position_s - costs.copied_after_s, costs.state_every_s))
            kept_s = max(copied_s, kept_s, _newest(position_s - costs.kept_after_s, costs.state_every_s))
            if fault.kind in costs.empty_memory:
                kept_s = copied_s
            now_s, position_s, pause = fault.at_s, kept_s, costs.pauses[fault.kind]
    return spent


def _newest(trained_s: float, every_s: float) -> float:
    """Return the training after which the newest state was taken."""
    return max(0.0, math.floor(trained_s / every_s) * every_s)
