"""A decoder-only transformer like Llama, and its initial weights.

A :class:`Transformer` is the whole model or one pipeline stage of it. Parameters have the same names in both, so that a
name means the same in every layout.
"""

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.moe.balance import BalanceLoss
from holdfast_trainer.moe.experts import MixtureOfExperts

_INITIAL_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention with rotary positions. Several query heads may share one key and value head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_width
        self.query = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)
        self.attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = attend_causally
        """Function of query, key, value and mask. Context parallelism sets one that sees the whole sequence."""

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [batch, sequence, dim] to the same shape.

        ``rotation`` is that of :func:`rotary_table`, with an axis for the heads if it differs between samples. ``mask``
        is that of :func:`document_mask`; None: every token sees all before it.
        """
        query = rotate(self._heads(self.query(x)), rotation)
        key = rotate(self._heads(self.key(x)), rotation)
        value = self._heads(self.value(x))
        mixed = self.attend(query, key, value, mask)
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        """Map [batch, sequence, heads * head_dim] to [batch, heads, sequence, head_dim].

        The number of heads is inferred, because under tensor parallelism a rank has only some of them.
        """
        samples, sequence, _ = x.shape
        return x.view(samples, sequence, -1, self.head_dim).transpose(1, 2)


def attend_causally(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Map [batch, heads, sequence, head_dim] of each to the shape of ``query``. A ``mask`` must be causal itself."""
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.output = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, sequence, dim] to the same shape."""
        projected: Tensor = self.output(functional.silu(self.gate(x)) * self.up(x))
        return projected


class Block(nn.Module):
    """Attention and feed-forward. Each reads the normalised residual stream and adds its result to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=config.norm_epsilon)
        self.feed_forward = MixtureOfExperts(config) if config.experts else FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [batch, sequence, dim] to the same shape; the others as in :class:`Attention`."""
        mixed: Tensor = x + self.attention(self.attention_norm(x), rotation, mask)
        fed: Tensor = self.feed_forward(self.feed_forward_norm(mixed))
        return mixed + fed


class Transformer(nn.Module):
    """The blocks ``layers`` of the model, with the embedding if ``first`` and the head if ``last``.

    ``positions`` (int64, [sequence]) holds the position of each input token in its sample.
    """

    def __init__(self, config: ModelConfig, *, positions: Tensor, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        self.config = config
        self.positions = positions
        self.sequence = len(positions)
        """Tokens of a sample. Context parallelism counts those of the other ranks, too."""
        self.embedding = nn.Embedding(config.vocabulary, config.dim) if first else None
        self.layers = nn.ModuleDict({str(layer): Block(config) for layer in layers})
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_epsilon) if last else None
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False) if last else None
        self.rotation: Tensor
        self.register_buffer("rotation", rotary_table(config, positions), persistent=False)
        self.tie()

    def tie(self) -> None:
        """Give the head the weight of the embedding, if the model is tied and has both."""
        if self.config.tied and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor, spans: Tensor | None = None) -> Tensor:
        """Map tokens [batch, sequence], or the activations of the stage before, to activations or logits.

        ``spans`` [batch, sequence, 2] says where the document of each token begins, and where the token is.
        """
        rotation, mask = self.rotation, None
        if spans is not None:
            rotation = rotary_table(self.config, spans[..., 1] - spans[..., 0]).unsqueeze(2)
            mask = document_mask(spans, self.sequence)
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.layers.values():
            x = block(x, rotation, mask)
        if self.norm is not None and self.head is not None:
            # The clone keeps FSDP's hook on the output. If the output were a view that is written to later, the hook
            # would be lost.
            x = self.head(self.norm(x)).clone()
        return x

    def chain(self) -> dict[str, nn.Module]:
        """Return the modules of :meth:`forward` by name, in order, without the head."""
        blocks = {f"layers.{name}": block for name, block in self.layers.items()}
        modules = {"embedding": self.embedding, **blocks, "norm": self.norm}
        return {name: module for name, module in modules.items() if module is not None}

    @torch.no_grad()
    def allocate(self, device: torch.device) -> None:
        """Allocate all parameters on ``device``, with arbitrary values, and fill the buffers."""
        self.to_empty(device=device)
        self.rotation.copy_(rotary_table(self.config, self.positions))
        for module in self.modules():
            if isinstance(module, BalanceLoss):
                module.statistics.zero_()

    @torch.no_grad()
    def initialise(self, device: torch.device, *, seed: int) -> None:
        """Allocate all parameters on ``device`` and fill them from the seed, with the same values in every layout.

        One parameter after another is made whole and then cut. So a rank needs memory for the largest whole one.
        """
        self.allocate(device)
        for name, parameter in self.named_parameters():
            whole = initial_value(name, parameter.shape, layers=self.config.layers, seed=seed).to(device)
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                parameter.copy_(distribute_tensor(whole, mesh, placements, src_data_rank=None))
            else:
                parameter.copy_(whole)


def initial_value(name: str, shape: torch.Size, *, layers: int, seed: int) -> Tensor:
    """Return the initial value of the whole parameter ``name``, which depends on the arguments alone.

    Norms are ones. Matrices are normally distributed. Those that write to the residual stream have a smaller deviation
    in a deeper model (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
    """
    if len(shape) == 1:
        return torch.ones(shape)
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest))
    std = _INITIAL_STD / math.sqrt(2 * layers) if name.removesuffix(".weight").endswith(".output") else _INITIAL_STD
    return torch.empty(shape).normal_(std=std, generator=generator)


def rotary_table(config: ModelConfig, positions: Tensor) -> Tensor:
    """Return the cosines and sines of the rotations at ``positions`` [...]: [2, ..., head_dim / 2].

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    """
    angles = positions.double().unsqueeze(-1) * rotary_frequencies(config, positions.device)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotary_frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Return the angle by which each pair of a head turns from one position to the next: fp64 [head_dim / 2], radians.

    ``linear`` is position interpolation (Chen et al., "Extending Context Window of Large Language Models via Positional
    Interpolation", 2023). ``llama3`` is that of Llama 3.1, which leaves the frequencies as they are that turn often.
    """
    head_dim = config.head_width
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    frequencies = config.rope_theta**-exponents
    if config.rope_scaling == "none":
        return frequencies
    if config.rope_scaling == "linear":
        return frequencies / config.rope_factor
    turns = config.rope_sequence * frequencies / (2 * math.pi)
    low, high = config.rope_low_frequency, config.rope_high_frequency
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / config.rope_factor)


def document_mask(spans: Tensor, sequence: int) -> Tensor:
    """Return which of ``sequence`` tokens each token sees: bool [batch, 1, local sequence, sequence].

    It sees those of its document up to itself. ``spans`` [batch, local sequence, 2] as in :meth:`Transformer.forward`.
    """
    seen = torch.arange(sequence, device=spans.device)
    begins, places = spans.unsqueeze(1).unsqueeze(-2).unbind(-1)
    return (seen >= begins) & (seen <= places)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_dim / 2) of [batch, heads, sequence, head_dim] by the angle of its position."""
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
