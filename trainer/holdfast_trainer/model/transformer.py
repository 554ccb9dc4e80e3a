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

from holdfast_trainer.config import ModelConfig
from holdfast_trainer.moe.balance import BalanceLoss
from holdfast_trainer.moe.experts import MixtureOfExperts

_INITIAL_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention with rotary positions. Several query heads may share one key and value head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.query = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = attend_causally
        """Function of query, key and value. Context parallelism sets one that sees the whole sequence."""

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Map [batch, sequence, dim] to the same shape; ``rotation`` as of :func:`rotary_table`."""
        query = rotate(self._heads(self.query(x)), rotation)
        key = rotate(self._heads(self.key(x)), rotation)
        value = self._heads(self.value(x))
        mixed = self.attend(query, key, value)
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        """Map [batch, sequence, heads * head_dim] to [batch, heads, sequence, head_dim].

        The number of heads is inferred, because under tensor parallelism a rank has only some of them.
        """
        samples, sequence, _ = x.shape
        return x.view(samples, sequence, -1, self.head_dim).transpose(1, 2)


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Map [batch, heads, sequence, head_dim] of each to the shape of ``query``."""
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


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

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Map [batch, sequence, dim] to the same shape."""
        mixed: Tensor = x + self.attention(self.attention_norm(x), rotation)
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

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [batch, sequence], or the activations of the stage before, to activations or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.layers.values():
            x = block(x, self.rotation)
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
    def initialise(self, device: torch.device, *, seed: int) -> None:
        """Allocate all parameters on ``device`` and fill them from the seed, with the same values in every layout.

        One parameter after another is made whole and then cut. So a rank needs memory for the largest whole one.
        """
        self.to_empty(device=device)
        self.rotation.copy_(rotary_table(self.config, self.positions))
        for module in self.modules():
            if isinstance(module, BalanceLoss):
                module.statistics.zero_()
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
    """Return the cosines and sines of the rotations at ``positions``: [2, sequence, head_dim / 2].

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    """
    head_dim = config.dim // config.heads
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = torch.outer(positions.double(), config.rope_theta**-exponents)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_dim / 2) of [batch, heads, sequence, head_dim] by the angle of its position."""
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
