"""The costs of a pipeline schedule: idle time, and microbatches whose activations wait for their backward pass."""

from holdfast_trainer.config_sections import ParallelConfig


def bubble_share(config: ParallelConfig) -> float:
    """Return the idle share of a rank's step, from 0 to 1, if all stages take equally long.

    With p pipeline ranks, m microbatches and v stages on each rank it is (p - 1) / (v m + p - 1). gpipe and 1f1b have
    v = 1, interleaved-1f1b v = 2 (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", 2021, section 2.2, which gives the bubble as a share of the time that is not idle).

    zero-bubble (Qi et al., 2023, ZB-V) fills other gaps with the gradients of weights. If these take as long as a
    forward pass, the work of a step has 6 m parts, each as long as a forward pass of half of a rank's layers. A rank
    waits only for the first p - 1 such parts.
    """
    parts = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zero-bubble": 6}[config.schedule] * config.microbatches
    idle = config.pp - 1
    return idle / (parts + idle)


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
