"""The search for the layouts of a number of GPUs that fit, the fastest first."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast_trainer import config_checks
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.plan import Places, Plan, fits, largest, make_plan, memory_plan, pipeline_places

_MICROBATCH_SAMPLES = (1, 2, 4, 8)
_SHORTEST_LOCAL_SEQUENCE = 4096
"""Tokens. Cutting shorter sequences over cp saves little and costs a gather in each block."""

CHOICES = ("tp", "pp", "cp", "ep", "dp", "zero", "schedule", "microbatches", "checkpointing")
"""Settings of [parallel] and [memory] that a search chooses."""

Settings = dict[str, object]
"""Keys of one section, and values."""


@dataclass(frozen=True)
class Search:
    """The result of a search."""

    best: tuple[Plan, ...]
    """Plans of the fastest layouts that fit, the fastest first."""
    fitting: int
    too_large: int
    """Number of layouts that need more memory than a GPU has."""
    smallest_bytes: float | None
    """Bytes of the largest rank in the layout that needs the least. None if the trainer refuses all layouts."""
    refused: Mapping[str, int]
    """Number of layouts that the trainer refuses, by the setting that its first reason names."""
    choices: tuple["Choice", ...] = ()
    """What each setting of the first layout gains."""


@dataclass(frozen=True)
class Choice:
    """One setting of the fastest layout, and the fastest layout with another value of it."""

    setting: str
    """One of :data:`CHOICES`."""
    value: str
    other: Plan | None
    """None: with no other value does any layout fit."""
    alternatives: int
    """Number of other values that were searched."""
    is_given: bool


def search(
    config: TrainerConfig, cluster: Cluster, *, gpus: int, parallel: Settings, memory: Settings, best: int
) -> Search:
    """Return the ``best`` fastest layouts of ``config``'s model and batch on ``gpus`` GPUs.

    The search covers those of :func:`candidates` that have the given settings of [parallel] and [memory]. All other
    settings are as in ``config``. Of equally fast layouts the earlier one wins.
    """
    refused: Counter[str] = Counter()
    plans: list[Plan] = []
    needs: list[float] = []
    places: dict[tuple[int, str], Places] = {}
    seen: dict[str, set[str]] = {setting: set() for setting in CHOICES}
    base = config.model_copy(update={"parallel": config.parallel.model_copy(update=parallel)})
    for candidate in candidates(base, gpus, cluster.gpus_per_node, parallel, memory):
        problems = config_checks.problems(candidate)
        if problems:
            refused[problems[0].split(maxsplit=1)[0]] += 1
            continue
        cut = (candidate.parallel.pp, candidate.parallel.schedule)
        if cut not in places:
            places[cut] = pipeline_places(candidate)
        needed = memory_plan(candidate, places[cut])
        needs.append(largest(needed).total)
        for setting in CHOICES:
            seen[setting].add(value_of(candidate, setting))
        if fits(needed, cluster):
            plans.append(make_plan(candidate, cluster, places[cut]))
    fastest = sorted(plans, key=lambda plan: plan.time.total_s)
    choices = []
    for setting in CHOICES if fastest else ():
        value = value_of(fastest[0].config, setting)
        other = next((plan for plan in fastest if value_of(plan.config, setting) != value), None)
        choices.append(Choice(setting, value, other, len(seen[setting]) - 1, setting in {*parallel, *memory}))
    return Search(
        best=tuple(fastest[:best]),
        fitting=len(plans),
        too_large=len(needs) - len(plans),
        smallest_bytes=min(needs, default=None),
        refused=refused,
        choices=tuple(choices),
    )


def value_of(config: TrainerConfig, setting: str) -> str:
    """Return the value of a setting of [parallel] or [memory]. Without a pipeline, the schedule is ``none``."""
    if setting == "checkpointing":
        return config.memory.checkpointing
    is_unused = setting == "schedule" and config.parallel.pp == 1
    return "none" if is_unused else str(getattr(config.parallel, setting))


def nearest(config: TrainerConfig, cluster: Cluster) -> TrainerConfig | None:
    """Return the layout with as many GPUs as ``config`` that fits and differs least from it; None: none fits."""
    best: tuple[float, TrainerConfig] | None = None
    places: dict[tuple[int, str], Places] = {}
    whole = config.model_copy(update={"parallel": config.parallel.model_copy(update={"dp_shard": 0})})
    for candidate in candidates(whole, config.parallel.ranks, cluster.gpus_per_node, {}, {}):
        distance = _distance(config, candidate)
        if (best is not None and distance >= best[0]) or config_checks.problems(candidate):
            continue
        cut = (candidate.parallel.pp, candidate.parallel.schedule)
        if cut not in places:
            places[cut] = pipeline_places(candidate)
        if fits(memory_plan(candidate, places[cut]), cluster):
            best = distance, candidate
    return best[1] if best is not None else None


def _distance(one: TrainerConfig, other: TrainerConfig) -> float:
    """Return how different two layouts are: factors of two between the sizes of groups, and less for other settings."""
    sizes = ("dp", "tp", "pp", "cp", "ep")
    between = sum(abs(math.log2(getattr(one.parallel, key) / getattr(other.parallel, key))) for key in sizes)
    others = sum(value_of(one, key) != value_of(other, key) for key in ("zero", "schedule", "checkpointing"))
    fewer = abs(math.log2(one.parallel.microbatches / other.parallel.microbatches))
    return between + 0.5 * others + 0.1 * fewer


def candidates(
    config: TrainerConfig, gpus: int, gpus_per_node: int, parallel: Settings, memory: Settings
) -> Iterator[TrainerConfig]:
    """Yield the layouts to judge, not yet checked. They have the given settings, and all usual values of the others."""
    checkpointings = _given(memory, "checkpointing", ("none", "selective", "full"))
    for settings in _layouts(config, gpus, gpus_per_node, parallel):
        layout = config.parallel.model_copy(update=settings)
        for kept in checkpointings:
            trade = config.memory.model_copy(update={"checkpointing": kept})
            yield config.model_copy(update={"parallel": layout, "memory": trade})


def _given(settings: Settings, key: str, usual: Sequence[Any]) -> Sequence[Any]:
    return (settings[key],) if key in settings else usual


def _layouts(config: TrainerConfig, gpus: int, gpus_per_node: int, given: Settings) -> Iterator[Settings]:
    """Yield settings of [parallel].

    tp stays within a node, because every block waits for its links, four times and more. It also divides the node. So
    ranks of the same place in their nodes form the groups between nodes: a rail, if its switches are wired like that.
    """
    longest_cp = max(1, config.data.sequence // _SHORTEST_LOCAL_SEQUENCE)
    for tp in _given(given, "tp", _divisors(math.gcd(gpus, gpus_per_node), most=gpus_per_node)):
        for pp in _given(given, "pp", _divisors(gpus // tp, most=config.model.layers)):
            for cp in _given(given, "cp", _divisors(gpus // (tp * pp), most=longest_cp)):
                dp, rest = divmod(gpus, tp * pp * cp)
                if rest or dp not in _given(given, "dp", (dp,)):
                    continue
                for choice in _choices(config, given, dp=dp, cp=cp, pp=pp):
                    yield {"dp": dp, "tp": tp, "pp": pp, "cp": cp, **choice}


def _choices(config: TrainerConfig, given: Settings, *, dp: int, cp: int, pp: int) -> Iterator[Settings]:
    samples = config.train.global_batch // dp
    # With one sample for several ranks no number of microbatches is right, which the trainer says.
    counts = [samples // size for size in _MICROBATCH_SAMPLES if samples >= size and samples % size == 0] or [1]
    schedules = ("1f1b", "interleaved-1f1b", "zero-bubble") if pp > 1 else ("1f1b",)
    # Under a pipeline schedule stages 2 and 3 need as much memory as 1, and 3 gathers more.
    stages = (0, 1) if pp > 1 else (0, 1, 2, 3)
    for zero in _given(given, "zero", stages if dp * cp > 1 else (0,)):
        for ep in _given(given, "ep", _divisors(config.model.experts or 1, most=dp * cp)):
            for schedule in _given(given, "schedule", schedules):
                for microbatches in _given(given, "microbatches", counts):
                    yield {"zero": zero, "ep": ep, "schedule": schedule, "microbatches": microbatches}


def _divisors(number: int, *, most: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0]
