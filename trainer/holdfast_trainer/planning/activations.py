"""Bytes of activations that one rank keeps between forward and backward passes: what autograd saves of this model.

Attention is assumed to be a fused kernel (flash or memory-efficient). It saves its inputs, its output and one fp32
number for each token and head, and never the scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage
from holdfast_trainer.planning.pipeline_schedule import microbatches_in_flight
from holdfast_trainer.planning.state_memory import compute_bytes

_FP32_BYTES = 4


@dataclass(frozen=True)
class BlockActivations:
    """Activations of a block for one token: elements in the data type of the computation, and bytes always in fp32."""

    elements: float
    fp32_bytes: float = 0.0

    def bytes_per_token(self, element_bytes: int) -> float:
        """Return the sum of both in bytes."""
        return self.elements * element_bytes + self.fp32_bytes


def microbatch_tokens(config: TrainerConfig) -> int:
    """Return the number of tokens of one microbatch on one rank."""
    parallel = config.parallel
    samples = config.train.global_batch // (parallel.dp * parallel.microbatches)
    return samples * config.data.sequence // parallel.cp


def rank_activations(config: TrainerConfig, stages: Sequence[Stage], pp_index: int) -> float:
    """Return the largest number of bytes that pipeline rank ``pp_index``, which holds ``stages``, keeps at a time."""
    tokens = microbatch_tokens(config)
    blocks = sum(len(stage.layers) for stage in stages)
    in_flight = microbatches_in_flight(config.parallel, pp_index)
    kept = in_flight * blocks * block_bytes_per_token(config)
    if config.memory.checkpointing != "none":
        kept += saved_by_block(config).bytes_per_token(compute_bytes(config))
    if any(stage.is_last for stage in stages):
        kept += head_bytes_per_token(config)
    return kept * tokens


def block_bytes_per_token(config: TrainerConfig) -> float:
    """Return the bytes that one block keeps for each token of a microbatch in flight."""
    kept = {"none": saved_by_block, "selective": _saved_selectively, "full": _saved_input}[config.memory.checkpointing]
    return kept(config).bytes_per_token(compute_bytes(config))


def saved_by_block(config: TrainerConfig) -> BlockActivations:
    """Return what autograd saves of a block without checkpointing.

    The widths are h (residual stream), q and k (query heads; key and value heads each) and f (feed-forward). In the
    order of the computation, the elements are: inputs and outputs of both norms (4 h); rotated queries and keys, values
    and mixed values (2 q + 2 k); gate, its SiLU, up and their product (4 f). In fp32 are the log-sum-exp of the scores
    of each head, and one number of each norm.

    tp shards heads and f. With sequence parallelism it shards the inputs of the norms, too. Their outputs are gathered
    before the matrix products, which save them whole.
    """
    tp, stream = config.parallel.tp, _stream_width(config)
    h, q, k = _widths(config)
    attention = (2 * q + 2 * k * config.parallel.cp) / tp
    fp32_bytes = _FP32_BYTES * (config.model.heads / tp + 2)
    return BlockActivations(2 * stream + 2 * h + attention + _feed_forward(config, copies=4), fp32_bytes)


def _saved_selectively(config: TrainerConfig) -> BlockActivations:
    """Return what autograd saves with selective checkpointing: the input, and results of matrix products and attention.

    The two products at the end of a tensor-parallel part are saved before and after the sum over tp.
    """
    tp, stream = config.parallel.tp, _stream_width(config)
    h, q, k = _widths(config)
    sums = 2 * stream if tp > 1 else 0
    products = 2 * h + sums + (2 * q + 2 * k) / tp + _feed_forward(config, copies=2)
    return BlockActivations(stream + products, _FP32_BYTES * config.model.heads / tp)


def _saved_input(config: TrainerConfig) -> BlockActivations:
    return BlockActivations(_stream_width(config))


def _feed_forward(config: TrainerConfig, *, copies: int) -> float:
    """Return elements for each token. With experts, each picked one takes a copy of the token and returns one."""
    model, tp = config.model, config.parallel.tp
    if not model.experts:
        return copies * model.hidden / tp
    return model.experts_per_token * (2 * model.dim + copies * model.hidden / tp) + 2 * model.experts


def head_bytes_per_token(config: TrainerConfig) -> float:
    """Return the bytes of the last norm, the head and the loss: logits, fp32 copy, probabilities and gradient."""
    parallel = config.parallel
    vocabulary = config.model.vocabulary / (parallel.tp if parallel.loss_parallel else 1)
    element = compute_bytes(config)
    return element * (_stream_width(config) + config.model.dim) + vocabulary * (element + 3 * _FP32_BYTES)


def _stream_width(config: TrainerConfig) -> float:
    parallel = config.parallel
    return config.model.dim / (parallel.tp if parallel.sequence_parallel else 1)


def _widths(config: TrainerConfig) -> tuple[int, int, int]:
    model = config.model
    return model.dim, model.heads * model.head_width, model.kv_heads * model.head_width
