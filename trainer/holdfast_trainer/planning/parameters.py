"""The number of parameters on each rank, in the groups that ``fully_shard`` gathers and reduces together."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.model.stages import Stage


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are gathered and reduced together, after tp, pp and ep have sharded the model."""

    elements: int
    """Number of elements on one rank after the gather."""
    shards: int
    """Number of ranks over which they are sharded."""
    replicas: int
    """Number of sets of such ranks. All sets hold the same."""

    @property
    def sharded_elements(self) -> float:
        """Number of elements that one rank keeps."""
        return self.elements / self.shards


@dataclass(frozen=True)
class RankParameters:
    """The parameters of one rank, over all of its pipeline stages."""

    block: tuple[ParameterGroup, ...]
    """Groups of each block: the dense parameters, and the experts if it has any."""
    blocks: int
    root: ParameterGroup
    """Group of the embedding, the last norm and the head, without those on other ranks."""
    embedding: int
    """Number of elements of the embedding in :attr:`root` after the gather."""

    @property
    def elements(self) -> int:
        """Number of elements if all groups are gathered."""
        return self.blocks * self.block_elements + self.root.elements

    @property
    def block_elements(self) -> int:
        """Number of elements of one block after the gather."""
        return sum(group.elements for group in self.block)

    @property
    def sharded_elements(self) -> float:
        """Number of elements that the rank keeps."""
        return self.blocks * sum(group.sharded_elements for group in self.block) + self.root.sharded_elements


def parameter_count(model: ModelConfig) -> int:
    """Return the number of parameters of the whole model."""
    embeddings = model.vocabulary * model.dim * (1 if model.tied else 2)
    return model.layers * (_dense_block(model, tp=1) + _experts(model)) + embeddings + model.dim


def rank_parameters(config: TrainerConfig, stages: Iterable[Stage]) -> RankParameters:
    """Return the parameters of the rank that holds ``stages``."""
    model, parallel = config.model, config.parallel
    data_ranks = parallel.dp * parallel.cp
    shards = 1 if parallel.zero == 0 else parallel.shards * parallel.cp
    expert_shards = 1 if parallel.zero == 0 else shards // parallel.ep
    held = list(stages)
    block = [ParameterGroup(_dense_block(model, parallel.tp), shards, data_ranks // shards)]
    if model.experts:
        local_experts = _experts(model) // (parallel.ep * parallel.tp)
        block.append(ParameterGroup(local_experts, expert_shards, data_ranks // (expert_shards * parallel.ep)))
    root = ParameterGroup(sum(_root(config, stage) for stage in held), shards, data_ranks // shards)
    embedding = _matrix(config) if any(stage.is_first for stage in held) else 0
    return RankParameters(tuple(block), sum(len(stage.layers) for stage in held), root, embedding)


def _dense_block(model: ModelConfig, tp: int) -> int:
    """Return the elements of attention, feed-forward or router, and two norms. tp shards neither norms nor router."""
    head_dim = model.head_width
    attention = 2 * model.dim * head_dim * (model.heads + model.kv_heads)
    feed_forward = 0 if model.experts else 3 * model.dim * model.hidden
    return (attention + feed_forward) // tp + 2 * model.dim + model.dim * model.experts


def _experts(model: ModelConfig) -> int:
    return model.experts * 3 * model.dim * model.hidden


def _root(config: TrainerConfig, stage: Stage) -> int:
    model = config.model
    matrices = int(stage.is_first) + int(stage.is_last and not model.tied)
    return matrices * _matrix(config) + (model.dim if stage.is_last else 0)


def _matrix(config: TrainerConfig) -> int:
    """Return the elements of the embedding or of the head, which tp shards along the vocabulary."""
    return config.model.vocabulary * config.model.dim // config.parallel.tp
