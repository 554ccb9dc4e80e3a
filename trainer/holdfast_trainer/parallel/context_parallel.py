"""Context parallelism: the ranks of a group share each sequence. Every rank has two chunks of it.

Rank r of C holds the chunks r and 2C - 1 - r of 2C. Only two parts of the model look at other tokens and must know
about this. Attention gathers keys and values (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.2).
Experts count the tokens that picked them.
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

    The sequence is cut into 2 x cp_size chunks. Rank r holds chunk r and the chunk that is r from the end. Causal
    attention costs more at a late position than at an early one, and this way every rank has the same work.
    ``sequence`` must be a multiple of 2 x cp_size, unless cp_size is 1.
    """
    places = torch.arange(sequence)
    if cp_size == 1:
        return places
    assert sequence % (2 * cp_size) == 0
    chunks = places.chunk(2 * cp_size)
    return torch.cat([chunks[cp_index], chunks[-1 - cp_index]])


def apply_context_parallel(model: Transformer, mesh: Mesh) -> None:
    """Make ``model`` work on this rank's two chunks of each sequence. Its positions must be those of the chunks."""
    group, chunk = mesh.group("cp"), len(model.positions) // 2
    model.sequence *= group.size()
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = GatheredAttention(group, chunk=chunk)
        elif isinstance(module, MixtureOfExperts):
            module.tally = ZigzagTally(group)


class GatheredAttention:
    """Attends causally from this rank's queries, two chunks of ``chunk`` tokens each, to the whole sequence."""

    def __init__(self, group: dist.ProcessGroup, *, chunk: int) -> None:
        self._group = group
        rank, chunks = group.rank(), 2 * group.size()
        # The queries of chunk i see the keys of the chunks 0 to i, a prefix of the sequence. The bias is causal in the
        # last of these chunks: it aligns the last query with the last key of the prefix.
        prefixes = [chunk * (index + 1) for index in (rank, chunks - 1 - rank)]
        # Created once, because selective activation checkpointing cannot trace their creation.
        self._biases = [(prefix, causal_lower_right(chunk, prefix)) for prefix in prefixes]

    # torch.compile cannot trace collectives that carry gradients.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [samples, heads, local sequence, head_dim] to the shape of ``query``.

        ``mask`` is [samples, 1, local sequence, whole sequence] and causal; None: every token sees all before it.
        """
        # The gather takes the few key and value heads, before the kernel shares them among the query heads. One gather
        # carries both.
        whole_key, whole_value = in_order(gather_parts(torch.stack([key, value]), self._group), dim=3)
        biases: list[Tensor] = [bias for _, bias in self._biases]
        if mask is not None:
            halves = zip(mask.chunk(2, dim=2), self._biases, strict=True)
            biases = [half[..., :prefix] for half, (prefix, _) in halves]
        mixed = [
            functional.scaled_dot_product_attention(
                part, whole_key[:, :, :prefix], whole_value[:, :, :prefix], attn_mask=bias, enable_gqa=True
            )
            for part, (prefix, _), bias in zip(query.chunk(2, dim=2), self._biases, biases, strict=True)
        ]
        return torch.cat(mixed, dim=2)


class ZigzagTally:
    """See :class:`holdfast_trainer.moe.routing.Tally`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.parts = group.size()

    def __call__(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the counts over the whole sequence, with the picks of all ranks."""
        # Ranks exchange one count per chunk and expert, not their picks. In the order of the sequence, the chunks
        # before a chunk of ours give the picks before its first token. Our chunks are ``rank`` and ``-1 - rank``.
        chunks = torch.stack(picked.chunk(2, dim=1), dim=1)
        per_chunk = in_order(gather_parts(chunks.sum(dim=2, dtype=torch.int32), self._group), dim=1)
        rank = self._group.rank()
        before = earlier_picks(per_chunk)[:, [rank, -1 - rank]].unsqueeze(2)
        return (earlier_picks(chunks) + before).flatten(1, 2), per_chunk.sum(dim=1)


def in_order(parts: Tensor, *, dim: int) -> Tensor:
    """Return the whole sequence along ``dim``, from parts [ranks, ...] that have two chunks each along ``dim``.

    It inverts :func:`zigzag_positions`.
    """
    # All first chunks, in the order of the ranks, are the first half. The second chunks are the other half, reversed.
    early, late = parts.chunk(2, dim=dim + 1)
    return torch.cat([*early, *late.flip(0)], dim=dim)
