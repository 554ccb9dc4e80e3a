"""The blocks of each pipeline stage, and the rank that holds it.

Pure arithmetic, the same on every rank. So a layout can be planned without torch, before it is launched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import ModelConfig, ParallelConfig


@dataclass(frozen=True)
class Stage:
    """One of the ``count`` parts that the model is cut into."""

    index: int
    count: int
    layers: range

    @property
    def is_first(self) -> bool:
        """Whether the stage has the embedding."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage has the head. A rank with this stage knows the loss."""
        return self.index == self.count - 1


def held_stages(config: TrainerConfig, pp_index: int) -> tuple[Stage, ...]:
    """Return the stages that a pipeline rank holds, in the order in which a sample passes them."""
    ranks = stage_ranks(config.parallel)
    layers = stage_layers(config)
    return tuple(Stage(i, len(ranks), layers[i]) for i, rank in enumerate(ranks) if rank == pp_index)


def stage_ranks(config: ParallelConfig) -> list[int]:
    """Return the pipeline rank of each stage.

    The stages go to the ranks in turn. For zero-bubble they go forth and back (a V), so that the rank with the first
    stage has the last one, too (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024).
    """
    there = list(range(config.pp))
    if config.stages_per_rank > 1 and config.schedule == "zero-bubble":
        return there + there[::-1]
    return there * config.stages_per_rank


def stage_layers(config: TrainerConfig) -> list[range]:
    """Return the blocks of each stage, cut so that the slowest stage is as fast as possible: it limits the pipeline.

    The cost of a stage is that of a token's forward pass (:func:`block_cost`, :func:`head_cost`). The embedding only
    looks up a row, which costs next to nothing.
    """
    costs = [block_cost(config.model, config.data.sequence)] * config.model.layers
    costs[-1] += head_cost(config.model)
    return balanced_cut(costs, parts=len(stage_ranks(config.parallel)))


def block_cost(config: ModelConfig, sequence: int) -> int:
    """Return the multiply-adds of one block for one token. Causal attention counts half of the sequence."""
    head_dim = config.head_width
    attention = 2 * config.dim * head_dim * (config.heads + config.kv_heads)
    scores = sequence * config.heads * head_dim
    feed_forward = 3 * config.dim * config.hidden
    if config.experts:
        feed_forward = feed_forward * config.experts_per_token + config.dim * config.experts
    return attention + scores + feed_forward


def head_cost(config: ModelConfig) -> int:
    """Return the multiply-adds of the head for one token."""
    return config.dim * config.vocabulary


def balanced_cut(costs: Sequence[int], *, parts: int) -> list[range]:
    """Return ``costs`` cut into contiguous, nonempty ranges whose largest sum is minimal.

    Of several such cuts it returns one whose sums have the smallest squares: the most even one. It uses dynamic
    programming over the place of the last cut.
    """
    sums = list(accumulate(costs, initial=0))
    # best[end] is the best way to cut costs[:end]: its largest sum, its sum of squares, and its cuts.
    best = {0: (0, 0, [0])}
    for part in range(1, parts + 1):
        ends = range(part, len(costs) - (parts - part) + 1)
        best = {
            end: min(
                (max(largest, size := sums[end] - sums[start]), squares + size**2, [*cuts, end])
                for start, (largest, squares, cuts) in best.items()
                if start < end
            )
            for end in ends
        }
    return [range(start, end) for start, end in pairwise(best[len(costs)][2])]
