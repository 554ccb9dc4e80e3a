"""Context parallelism: the ranks of a group share each sequence, two chunks of it on every rank.

Rank r of C holds the chunks r and 2C - 1 - r of 2C. Only what looks at other tokens must know:
attention, which gathers keys and values (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.2), and
the counting of experts' tokens.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from holdfast_trainer.model.transformer import Attention, Transformer
from holdfast_trainer.moe.experts import MixtureOfExperts
from holdfast_trainer.moe.routing import earlier_picks
from holdfast_trainer.parallel.autograd_collectives import gather_parts
from holdfast_trainer.parallel.mesh import Mesh


def zigzag_positions(sequence: int, cp_size: int, cp_index: int) -> Tensor:
    """Return the positions that rank ``cp_index`` of ``cp_size`` holds: int64 [sequence / cp_size], ascending.

    The sequence is cut into 2 x cp_size chunks, of which rank r holds r and, counted from the end, r: under causal
    attention a late place costs more than an early one, and so every rank has the same to do (Grattafiori et al.,
    "The Llama 3 Herd of Models", 2024, section 3.3.2). ``sequence`` must be a multiple of 2 x cp_size, unless
    cp_size is 1.
    """
    places = torch.arange(sequence)
    if cp_size == 1:
        return places
    assert sequence % (2 * cp_size) == 0
    chunks = places.chunk(2 * cp_size)
    return torch.cat([chunks[cp_index], chunks[-1 - cp_index]])


def apply_context_parallel(model: Transformer, mesh: Mesh) -> None:
    """Have ``model`` work on this rank's two chunks of each sequence. Its positions must be theirs."""
    group, chunk = mesh.group("cp"), len(model.positions) // 2
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = GatheredAttention(group, chunk=chunk)
        elif isinstance(module, MixtureOfExperts):
            module.tally = ZigzagTally(group)


class GatheredAttention:
    """Causal attention of this rank's queries, two chunks of ``chunk`` tokens, to the whole sequence."""

    def __init__(self, group: dist.ProcessGroup, *, chunk: int) -> None:
        self._group = group
        rank, chunks = group.rank(), 2 * group.size()
        prefixes = [chunk * (index + 1) for index in (rank, chunks - 1 - rank)]
        # Made once: selective activation checkpointing cannot trace their making.
        self._biases = [(prefix, causal_lower_right(chunk, prefix)) for prefix in prefixes]

    # Compilation does not follow collectives with gradients.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Map [samples, heads, local sequence, head_dim] to the shape of ``query``."""
        # Key and value heads are gathered as few as they are: the kernel shares them among query heads.
        whole_key, whole_value = in_order(gather_parts(torch.stack([key, value]), self._group), dim=3)
        mixed = [
            functional.scaled_dot_product_attention(
                part, whole_key[:, :, :prefix], whole_value[:, :, :prefix], attn_mask=bias, enable_gqa=True
            )
            for part, (prefix, bias) in zip(query.chunk(2, dim=2), self._biases, strict=True)
        ]
        return torch.cat(mixed, dim=2)


class ZigzagTally:
    """See :class:`holdfast_trainer.moe.routing.Tally`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.parts = group.size()

    def __call__(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """Count with the picks of all ranks."""
        chunks = torch.stack(picked.chunk(2, dim=1), dim=1)
        per_chunk = in_order(gather_parts(chunks.sum(dim=2, dtype=torch.int32), self._group), dim=1)
        rank = self._group.rank()
        before = earlier_picks(per_chunk)[:, [rank, -1 - rank]].unsqueeze(2)
        return (earlier_picks(chunks) + before).flatten(1, 2), per_chunk.sum(dim=1)


def in_order(parts: Tensor, *, dim: int) -> Tensor:
    """Undo the zigzag: [ranks, ...] with two chunks along ``dim`` of the rest, to the whole along ``dim``."""
    early, late = parts.chunk(2, dim=dim + 1)
    return torch.cat([*early, *late.flip(0)], dim=dim)
