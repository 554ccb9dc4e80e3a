"""A fault that was put into a program, and who is to blame for it. What is recorded plays no part in that."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.simulation.nccl.actions import Action, Collective, NewGroups, Program, Python


@dataclass
class Fault:
    """A fault and who is to blame for it."""

    kind: str
    culprits: frozenset[int] = frozenset()
    """Ranks to blame. Empty: no rank is (a network, the program as a whole, or no fault at all)."""
    silent: frozenset[int] = frozenset()
    """Ranks that give no dump."""
    dead: frozenset[int] = frozenset()
    """Ranks that are known to be dead."""
    dies: frozenset[int] = frozenset()
    """Ranks that are killed at a random time."""
    stuck: frozenset[int] = frozenset()
    """Ranks on which a call never ends that ends on all others."""
    broken_group: int | None = None
    broken_pair: tuple[int, int] | None = None
    needs: dict[str, object] = field(default_factory=dict)
    """Settings of the machine without which the fault does not exist."""
    closed: bool = False
    """Whether no evidence may lead to a rank, unless device timing does."""
    both_sides: bool = False
    """Whether evidence has two sides, neither of which is shown to be right."""


Kind = TypeVar("Kind", bound=Action)
Injector = Callable[[Program, random.Random], Fault | None]


def body(program: Program, rank: int) -> range:
    """Return the indices of a rank's actions in training, without the first and the last part."""
    actions = program.ranks[rank]
    first = max((i for i, action in enumerate(actions) if isinstance(action, NewGroups)), default=0) + 3
    return range(min(first, len(actions) - 2), max(first + 1, len(actions) * 17 // 20))


def pick(
    program: Program, chance: random.Random, kind: type[Kind], wanted: Callable[[Kind], bool] | None = None
) -> tuple[int, int, Kind] | None:
    """Return a rank, and the index of a wanted action of it with the action."""
    ranks = list(range(program.world_size))
    chance.shuffle(ranks)
    for rank in ranks:
        actions = [(index, program.ranks[rank][index]) for index in body(program, rank)]
        fitting = [(i, each) for i, each in actions if isinstance(each, kind) and (wanted is None or wanted(each))]
        if fitting:
            return rank, *chance.choice(fitting)
    return None


def steps(program: Program, rank: int) -> list[int]:
    """Return the indices at which a rank's steps begin."""
    actions = program.ranks[rank]
    return [i for i, action in enumerate(actions) if isinstance(action, Python) and action.place == "data"]


def is_plain(call: Collective) -> bool:
    """Return whether a collective is outside a coalesced group."""
    return not call.coalesced


def needs_all(call: Collective) -> bool:
    """Return whether a plain collective ends on no member before all have come."""
    ops = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")  # a barrier is an all_reduce
    return is_plain(call) and call.op.lstrip("_").startswith(ops)
