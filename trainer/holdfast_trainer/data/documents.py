"""The documents in a sample. A sample is a window of text, so it may begin and end in the middle of a document."""

import torch
from torch import Tensor


def document_spans(tokens: Tensor, end: int) -> Tensor:
    """Return what each token may see: int64 [samples, sequence, 2], from int64 ``tokens`` [samples, sequence].

    The two numbers are the place in the sample where the token's document begins, and the place of the token itself.
    ``end`` is the token that ends a document, and belongs to it.
    """
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    begins = torch.where(tokens == end, places + 1, 0).roll(1, dims=1)
    begins[:, 0] = 0  # the last token has come round
    return torch.stack([begins.cummax(dim=1).values, places], dim=-1)
