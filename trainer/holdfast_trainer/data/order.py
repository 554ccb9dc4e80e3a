"""In which order a run sees its samples: keyed by how many it has consumed, not by rank or step."""

import hashlib

_FEISTEL_ROUNDS = 4


def sample_window(sample: int, windows: int, seed: int) -> int:
    """Return the window that the run's ``sample``-th sample is: every window once an epoch, newly shuffled each."""
    epoch, index = divmod(sample, windows)
    return permuted(index, windows, f"{seed}/{epoch}".encode())


def permuted(index: int, size: int, key: bytes) -> int:
    """Return where a permutation of range(size), chosen by ``key`` (at most 64 bytes), sends ``index``.

    A Feistel network over the next even number of bits, walked until it lands inside (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002): no table, and any place of it costs the same.
    """
    half_bits = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for round_number in range(_FEISTEL_ROUNDS):
            message = right.to_bytes(8) + bytes([round_number])
            noise = int.from_bytes(hashlib.blake2b(message, digest_size=8, key=key).digest())
            left, right = right, left ^ (noise & mask)
        index = left << half_bits | right
        if index < size:
            return index
