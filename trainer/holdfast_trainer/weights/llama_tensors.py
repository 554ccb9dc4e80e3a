"""Names and shapes of our parameters, and the names of the same tensors in a Llama model of Hugging Face.

Both rotate the pairs (i, i + head_dim / 2) of a head. So no row of a query or key weight has to move.
"""

import re
from dataclasses import dataclass

from holdfast_trainer.config_sections import ModelConfig

EMBEDDING, HEAD = "embedding.weight", "head.weight"
IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tensors that old versions saved, and that follow from the configuration."""


@dataclass(frozen=True)
class LlamaTensor:
    """A tensor of a Llama model."""

    name: str
    """Name in Hugging Face's files."""
    shape: tuple[int, ...]


def llama_tensors(model: ModelConfig) -> dict[str, LlamaTensor]:
    """Return the tensors by the names of our parameters, in the order of the forward pass."""
    dim, hidden = model.dim, model.hidden
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    block = {
        "attention_norm": ("input_layernorm", (dim,)),
        "attention.query": ("self_attn.q_proj", (queries, dim)),
        "attention.key": ("self_attn.k_proj", (keys, dim)),
        "attention.value": ("self_attn.v_proj", (keys, dim)),
        "attention.output": ("self_attn.o_proj", (dim, queries)),
        "feed_forward_norm": ("post_attention_layernorm", (dim,)),
        "feed_forward.gate": ("mlp.gate_proj", (hidden, dim)),
        "feed_forward.up": ("mlp.up_proj", (hidden, dim)),
        "feed_forward.output": ("mlp.down_proj", (dim, hidden)),
    }
    matrix = (model.vocabulary, dim)
    tensors = {EMBEDDING: LlamaTensor("model.embed_tokens.weight", matrix)}
    for layer in range(model.layers):
        for ours, (theirs, shape) in block.items():
            tensors[f"layers.{layer}.{ours}.weight"] = LlamaTensor(f"model.layers.{layer}.{theirs}.weight", shape)
    tensors["norm.weight"] = LlamaTensor("model.norm.weight", (dim,))
    if not model.tied:
        tensors[HEAD] = LlamaTensor("lm_head.weight", matrix)
    return tensors
