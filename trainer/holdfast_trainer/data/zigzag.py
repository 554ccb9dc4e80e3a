"""Which places of a sequence each rank of a context-parallel group holds."""

import torch
from torch import Tensor


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
