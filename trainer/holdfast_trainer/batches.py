"""Which samples make up which step.

The order is keyed by the number of samples consumed so far, not by rank or step: sample ``i`` of the run
is the same window of text at every data-parallel degree, and the step number alone is the data position.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.corpus import Corpus

_FEISTEL_ROUNDS = 4


@dataclass(frozen=True)
class Batch:
    """One data-parallel rank's share of a global batch, both int64 of shape [samples, sequence]."""

    inputs: Tensor
    targets: Tensor
    """The inputs, moved on by one token."""


@dataclass(frozen=True)
class Windows:
    """A mapped file of tokens, cut into windows of ``sequence`` tokens and the one after."""

    tokens: Tensor
    sequence: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.sequence
        return self.tokens[start : start + self.sequence + 1]


class Batches:
    """The batches of one data-parallel rank, on ``device``."""

    def __init__(self, config: TrainerConfig, corpus: Corpus, *, dp_index: int, device: torch.device) -> None:
        sequence = config.data.sequence
        self._global_batch = config.train.global_batch
        self._share = config.train.global_batch // config.parallel.dp
        self._first = dp_index * self._share
        self._seed = config.train.seed
        self._device = device
        self._train = _open(corpus.train, corpus.train_bytes, sequence)
        self._validation = _open(corpus.validation, corpus.validation_bytes, sequence)
        self._validation_samples = config.train.validation_batches * self._global_batch

    def training(self, step: int) -> Batch:
        """Return this rank's share of the batch of ``step``."""
        return self._stack(self._train, [sample_window(i, len(self._train), self._seed) for i in self._samples(step)])

    def validation(self, index: int) -> Batch:
        """Return this rank's share of the ``index``-th validation batch: windows evenly spread, the same every time."""
        windows = len(self._validation)
        return self._stack(
            self._validation, [i * windows // self._validation_samples % windows for i in self._samples(index)]
        )

    def _samples(self, step: int) -> range:
        start = step * self._global_batch + self._first
        return range(start, start + self._share)

    def _stack(self, windows: Windows, indices: list[int]) -> Batch:
        samples = torch.stack([windows[index] for index in indices]).long().to(self._device)
        return Batch(inputs=samples[:, :-1].contiguous(), targets=samples[:, 1:].contiguous())


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


def _open(path: Path, nbytes: int, sequence: int) -> Windows:
    return Windows(torch.from_file(str(path), shared=False, size=nbytes, dtype=torch.uint8), sequence)
