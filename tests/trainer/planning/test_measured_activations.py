import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import DataConfig, ModelConfig
from holdfast_trainer.model.transformer import Block, rotary_table
from holdfast_trainer.planning.activations import saved_by_block


def saved_bytes(config: TrainerConfig, backend: SDPBackend) -> int:
    """Return the bytes that autograd saves for one block, each storage once, without parameters and rotations."""
    sequence, samples = config.data.sequence, config.train.global_batch
    block = Block(config.model)
    rotation = rotary_table(config.model, torch.arange(sequence))
    ours = {tensor.untyped_storage().data_ptr() for tensor in (*block.parameters(), rotation)}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in ours:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x = torch.randn(samples, sequence, config.model.dim, requires_grad=True)
    with sdpa_kernel(backend), saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x, rotation)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("sequence", [16, 64])
def test_a_block_saves_what_the_formula_says(kv_heads: int, sequence: int) -> None:
    model = ModelConfig(dim=64, layers=1, heads=4, kv_heads=kv_heads, hidden=192)
    config = TrainerConfig(model=model, data=DataConfig(sequence=sequence))
    dim, heads = config.model.dim, config.model.heads
    tokens = 8 * sequence
    per_token = saved_by_block(config).bytes_per_token(4)
    # On a CPU a norm also saves its input before it is scaled, and the mixed values are copied into another order.
    fused = per_token + 3 * dim * 4
    assert saved_bytes(config, SDPBackend.FLASH_ATTENTION) == fused * tokens
    # Plain attention saves scores, and keys and values repeated for all heads; neither its result nor a log-sum-exp.
    key_value = 2 * kv_heads * (dim // heads)
    plain = fused + 4 * (heads * sequence + 2 * dim - key_value - dim - heads)
    assert saved_bytes(config, SDPBackend.MATH) == plain * tokens
