"""What a rank trained on in a step, in 16 bytes."""

import hashlib
from collections.abc import Sequence

from holdfast_trainer.data.tokenizer import Tokens


def fingerprint(epochs: Sequence[int], windows: Sequence[int], tokens: Tokens) -> bytes:
    """Return the BLAKE2b of a batch: which window in which epoch each sample is, and ``tokens`` [samples, length].

    The epoch counts, so that seeing a window again in the next one is no repetition.
    """
    digest = hashlib.blake2b(digest_size=16)
    for epoch, window in zip(epochs, windows, strict=True):
        digest.update(epoch.to_bytes(8) + window.to_bytes(8))
    digest.update(tokens.data)
    return digest.digest()
