"""Well-known sizes of models, each with its usual batch."""

from dataclasses import dataclass

from holdfast_trainer.config import ModelConfig


@dataclass(frozen=True)
class Preset:
    """A model, the tokens in one of its samples, and the samples in an optimizer step."""

    model: ModelConfig
    sequence: int
    global_batch: int


# Shapes and batches of Llama 2 (Touvron et al., 2023), of Llama 3 (8b, 405b; Grattafiori et al., 2024), and of GPT-3 as
# Narayanan et al. ("Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021) train it.
# 405b has Llama 3's 16 million tokens in a step, and 8b has Llama 2's 4 million. GPT's two matrices of 4 x dim in a
# feed-forward part become SwiGLU's three of 8/3 x dim: as many parameters.
PRESETS = {
    "7b": Preset(
        ModelConfig(dim=4096, layers=32, heads=32, kv_heads=32, hidden=11008, vocabulary=32000),
        sequence=4096,
        global_batch=1024,
    ),
    "8b": Preset(
        ModelConfig(dim=4096, layers=32, heads=32, kv_heads=8, hidden=14336, vocabulary=128256, rope_theta=500_000),
        sequence=8192,
        global_batch=512,
    ),
    "13b": Preset(
        ModelConfig(dim=5120, layers=40, heads=40, kv_heads=40, hidden=13824, vocabulary=32000),
        sequence=4096,
        global_batch=1024,
    ),
    "70b": Preset(
        ModelConfig(dim=8192, layers=80, heads=64, kv_heads=8, hidden=28672, vocabulary=32000),
        sequence=4096,
        global_batch=1024,
    ),
    "175b": Preset(
        ModelConfig(dim=12288, layers=96, heads=96, kv_heads=96, hidden=32768, vocabulary=51200),
        sequence=2048,
        global_batch=1536,
    ),
    "405b": Preset(
        ModelConfig(dim=16384, layers=126, heads=128, kv_heads=8, hidden=53248, vocabulary=128256, rope_theta=500_000),
        sequence=8192,
        global_batch=2048,
    ),
}
