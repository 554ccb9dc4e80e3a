"""The costs of a pipeline schedule: idle time, and microbatches whose activations wait for their backward pass."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from holdfast_trainer.config_sections import ParallelConfig
from holdfast_trainer.planning.formulas import Formula

PARTS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zero-bubble": 6}
"""Schedule -> v of :func:`bubble_share`."""
_IDLE = Formula("idle share of the pipeline", "share", "(stages - 1) / (v * microbatches + stages - 1)")


def bubble_share(config: ParallelConfig) -> float:
    """Return the idle share of a rank's step, from 0 to 1, if all stages take equally long.

    With p pipeline ranks, m microbatches and v stages on each rank it is (p - 1) / (v m + p - 1), also if m is smaller
    than p. gpipe and 1f1b have v = 1, interleaved-1f1b v = 2 (Narayanan et al., "Efficient Large-Scale Language Model
    Training on GPU Clusters Using Megatron-LM", 2021, section 2.2, which gives the bubble as a share of the time that
    is not idle).

    zero-bubble (Qi et al., 2023, ZB-V) fills other gaps with the gradients of weights. If these take as long as a
    forward pass, the work of a step has 6 m parts, each as long as a forward pass of half of a rank's layers. A rank
    waits only for the first p - 1 such parts.
    """
    return _IDLE(stages=config.pp, v=PARTS[config.schedule], microbatches=config.microbatches)


@dataclass(frozen=True)
class Efficiency:
    """Shares of time in which the ranks of a pipeline work, under one schedule."""

    schedule: str
    shares: Mapping[int, float]
    """Number of microbatches -> share, from 0 to 1."""
    count_for_most: int
    """Number of microbatches from which on it is at least 90 %."""


def efficiencies(pp: int) -> Iterator[Efficiency]:
    """Yield the efficiency of each schedule with a quarter, a half, once, twice and four times ``pp`` microbatches.

    The trainer takes no fewer microbatches than ranks of the pipeline, but papers and other trainers do.
    """
    counts = sorted({max(1, pp // 4), max(1, pp // 2), pp, 2 * pp, 4 * pp})
    for schedule, v in PARTS.items():
        idle = {count: _IDLE(schedule, stages=pp, v=v, microbatches=count) for count in counts}
        shares = {count: 1.0 - share for count, share in idle.items()}
        yield Efficiency(schedule, shares, microbatches_for(0.9, pp=pp, schedule=schedule))


def microbatches_for(efficiency: float, *, pp: int, schedule: str) -> int:
    """Return the smallest number of microbatches with which ranks work for this share of the time."""
    # 1 - (p - 1) / (v m + p - 1) >= e, solved for m. Rounding must not turn a whole number into the next one.
    return max(1, ceil(round(efficiency * (pp - 1) / ((1 - efficiency) * PARTS[schedule]), 9)))


def microbatches_in_flight(config: ParallelConfig, pp_index: int) -> float:
    """Return the largest number of microbatches for which the rank holds the activations of all its layers."""
    microbatches, ranks_from_here = config.microbatches, config.pp - pp_index
    match config.schedule:
        case _ if config.pp == 1:
            return 1
        case "gpipe":
            return microbatches
        case "1f1b":
            return min(microbatches, ranks_from_here)
        case "zero-bubble":
            return min(microbatches, config.pp)
        case "interleaved-1f1b":
            stages = config.stages_per_rank
            warm_up = 2 * (ranks_from_here - 1) + (stages - 1) * config.pp
            return min(stages * microbatches, warm_up + 1) / stages
