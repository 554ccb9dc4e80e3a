"""Faults at random times, the same for the same seed."""

import math
import random
from collections.abc import Iterator, Sequence

from holdfast_hooks.faults.catalogue import CATALOGUE
from holdfast_hooks.faults.fault import Fault

_FACTOR = 2.0
_JUMP_S = 3600.0


def random_faults(
    *, rate_per_step: float, kinds: Sequence[str], ranks: Sequence[int], seed: int, first_step: int = 0
) -> Iterator[Fault]:
    """Yield faults forever, in the order of their steps, from ``first_step`` on.

    Every step has a fault with probability ``rate_per_step``, whatever happened before. So the number of steps from one
    fault to the next is geometric: 1 + floor(ln(u) / ln(1 - rate)), with u uniform in (0, 1]. Kind and rank are
    uniform.
    Raises ValueError for settings that are not valid.
    """
    if not 0 < rate_per_step <= 1:
        raise ValueError(f"rate_per_step {rate_per_step:g}: use more than 0 and at most 1")
    if not kinds or not ranks:
        raise ValueError("random faults need at least one of kinds and one of ranks")
    for kind in kinds:
        if kind not in CATALOGUE:
            raise ValueError(f"no fault is called {kind!r}: `holdfast inject --list` names them all")
    return _faults(random.Random(seed), rate_per_step, kinds, ranks, first_step)


def _faults(
    chance: random.Random, rate_per_step: float, kinds: Sequence[str], ranks: Sequence[int], first_step: int
) -> Iterator[Fault]:
    step = first_step - 1
    while True:
        step += _interval_steps(chance, rate_per_step)
        kind = chance.choice(kinds)
        takes = CATALOGUE[kind].takes
        yield Fault(
            kind,
            rank=chance.choice(ranks),
            step=step,
            factor=_FACTOR if "factor" in takes else 0.0,
            duration_s=_JUMP_S if kind == "clock-jump" else 0.0,
            seed=chance.getrandbits(32) if "seed" in takes else 0,
        )


def _interval_steps(chance: random.Random, rate_per_step: float) -> int:
    if rate_per_step == 1:
        return 1
    return 1 + math.floor(math.log(1.0 - chance.random()) / math.log1p(-rate_per_step))
