"""All layouts of up to eight ranks, and a few of them that stand for the rest."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from typing import Any

DEGREES = (1, 2, 4, 8)
SMALL_DEGREES = (1, 2, 4)
"""Degrees of cp and ep, which are combined with more settings than the others."""
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble")
OPTIMIZER = {"learning_rate": 0.01, "warmup_steps": 1, "epsilon": 1e-4, "clip_norm": 0.1}
"""Settings with which rounding stays small and clipping bites. Epsilon is larger than the rounding error of a gradient
that should be zero."""


@dataclass(frozen=True)
class Layout:
    dp: int = 1
    dp_shard: int = 0
    zero: int = 3
    tp: int = 1
    pp: int = 1
    cp: int = 1
    experts: bool = False
    ep: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = True
    loss_parallel: bool = True
    optimizer: str = "adamw"

    @property
    def ranks(self) -> int:
        return self.dp * self.cp * self.tp * self.pp

    @property
    def largest_degree(self) -> int:
        return max(self.dp, self.tp, self.pp, self.cp, self.ep)

    @property
    def flags(self) -> str:
        """Flags that a user would type, for the message about a layout that fails."""
        parallel = [f"--parallel.{key}={value}" for key, value in self.parallel.items()]
        experts = [f"--model.{key}={value}" for key, value in self._experts.items()] if self.experts else []
        return " ".join([*parallel, *experts, f"--optimizer.name={self.optimizer}"])

    @property
    def parallel(self) -> dict[str, Any]:
        settings = asdict(self)
        del settings["optimizer"], settings["experts"]
        return {**settings, "microbatches": {1: 2, 2: 4, 4: 4, 8: 8}[self.pp]}

    @property
    def _experts(self) -> dict[str, Any]:
        """Settings that make experts drop tokens, and the balance loss part of every gradient."""
        return {"experts": 4, "capacity_factor": 1.0, "balance_coefficient": 0.1}

    @property
    def config(self) -> dict[str, Any]:
        """A whole configuration: as small as the layout allows."""
        stages = self.pp * (2 if self.schedule in SCHEDULES[2:] else 1)
        model = {"dim": 32, "layers": max(2, stages), "heads": 8, "kv_heads": max(4, self.tp), "hidden": 32}
        return {
            "model": {**model, **(self._experts if self.experts else {})},
            "parallel": self.parallel,
            "data": {"sequence": 16},
            "train": {"global_batch": 16},
            "optimizer": {"name": self.optimizer, **OPTIMIZER},
        }


def every_layout() -> list[Layout]:
    return [
        Layout(dp, dp_shard, zero, tp, pp, cp, experts, ep, schedule, sequence_parallel, loss_parallel, optimizer)
        for dp, tp, pp in product(DEGREES, repeat=3)
        for cp in SMALL_DEGREES
        if dp * tp * pp * cp <= 8
        for zero, dp_shard in _sharding(dp)
        for experts, ep in _expert_degrees((dp_shard or dp if zero else 1) * cp)
        for schedule in (SCHEDULES if pp > 1 else ("1f1b",))
        for sequence_parallel, loss_parallel in product((True, False), repeat=2)
        if tp > 1 or (sequence_parallel and loss_parallel)
        for optimizer in ("adamw", "sgd")
    ]


def _expert_degrees(shard_ranks: int) -> Iterator[tuple[bool, int]]:
    yield False, 1
    yield from ((True, ep) for ep in SMALL_DEGREES if ep <= shard_ranks)


def _sharding(dp: int) -> Iterator[tuple[int, int]]:
    yield 0, 0
    for zero in (1, 2, 3):
        yield from ((zero, dp_shard) for dp_shard in (0, *DEGREES) if dp_shard < dp)


def sweep(layouts: Sequence[Layout]) -> list[Layout]:
    """Return every combination of degrees, ZeRO stage and schedule, with the other settings in rotation."""
    groups: dict[Layout, list[Layout]] = {}
    for layout in layouts:
        key = replace(layout, sequence_parallel=True, loss_parallel=True, optimizer="adamw")
        groups.setdefault(key, []).append(layout)
    return [group[index % len(group)] for index, group in enumerate(groups.values())]


def sample(layouts: Sequence[Layout]) -> list[Layout]:
    """Return a few layouts that stand for the rest: in them every setting has each of its values, up to degrees of 4.

    Each two values of two settings occur together, if they can, up to degrees of two; larger ones, which cost most,
    occur once.
    """
    small = pairwise_cover([layout for layout in layouts if layout.largest_degree <= 2])
    medium = [layout for layout in layouts if layout.largest_degree <= 4 and layout.ranks <= 4]
    return [*small, *value_cover(medium, covered=small)]


def value_cover(layouts: Sequence[Layout], *, covered: Sequence[Layout]) -> list[Layout]:
    """Return layouts that have the values which no setting has in ``covered``, as few as a greedy choice finds."""
    missing = _values(layouts) - _values(covered)
    chosen = []
    while missing:
        chosen.append(max(layouts, key=lambda layout: len(missing & _values([layout]))))
        missing -= _values(chosen)
    return chosen


def _values(layouts: Sequence[Layout]) -> set[tuple[str, Any]]:
    return {setting for layout in layouts for setting in asdict(layout).items()}


def pairwise_cover(layouts: Sequence[Layout]) -> list[Layout]:
    """Return layouts in which each two values of two settings occur together that do so in any of ``layouts``.

    Greedy: the next one is the first of those that bring most pairs not seen yet for each of their ranks.
    """
    bits: dict[Any, int] = {}
    masks = [
        sum(1 << bits.setdefault(pair, len(bits)) for pair in combinations(asdict(layout).items(), 2))
        for layout in layouts
    ]
    missing = (1 << len(bits)) - 1
    chosen = []
    while missing:
        best = max(range(len(layouts)), key=lambda index: (masks[index] & missing).bit_count() / layouts[index].ranks)
        chosen.append(layouts[best])
        missing &= ~masks[best]
    return chosen
