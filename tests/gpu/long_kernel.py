"""A kernel that keeps the GPU busy for a while, and always ends."""

import torch

_CYCLES_PER_S = 1.0e9
"""No GPU of a data centre has a slower clock under load, so a kernel lasts at most about twice as long as asked."""


def busy_for(seconds: float) -> None:
    """Enqueue a kernel on the current stream. It lasts about ``seconds``, and at least half of that."""
    torch.cuda._sleep(int(seconds * _CYCLES_PER_S))  # type: ignore[no-untyped-call]
