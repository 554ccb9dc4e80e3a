"""The batches of a run: which samples belong to which step, in which order, as tensors.

The number of samples used so far decides the order, not the rank or the step. Sample ``i`` of the run is the same
window of text at every data-parallel degree, and the step number alone is the data position.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.corpus import Corpus
from holdfast_trainer.data.prefetch import Prefetch
from holdfast_trainer.data.tokenizer import Tokens
from holdfast_trainer.parallel.context_parallel import zigzag_positions

IGNORED = -100
"""Target of a token that counts neither in the loss nor in the gradient."""
_FEISTEL_ROUNDS = 4


@dataclass(frozen=True)
class Batch:
    """The share of a global batch that one data-parallel rank has. Of each sample, it has its context-parallel part."""

    inputs: Tensor
    """int64 [samples, local sequence]."""
    targets: Tensor
    """Tokens that follow the inputs, of the same shape."""
    positions: Tensor
    """Positions of the inputs in the sequence: int64 [local sequence]."""
    spans: Tensor | None
    """Documents of the inputs, as of :func:`document_spans`: [samples, local sequence, 2]. None: a sample is one text.
    """
    fingerprint: bytes
    """Fingerprint of the whole share, the same on all ranks of one data-parallel index: 16 bytes."""

    def spans_of_microbatches(self, count: int) -> Sequence[Tensor | None]:
        """Return ``spans`` in ``count`` equal parts."""
        return [None] * count if self.spans is None else self.spans.chunk(count)

    def padded(self, samples: int) -> "Batch":
        """Return the batch with ``samples`` samples: the last one is repeated, with targets that are IGNORED."""
        real = len(self.inputs)
        if samples == real:
            return self
        rows = torch.arange(samples).clamp(max=real - 1)
        longer = self.changed(lambda tensor: tensor[rows])
        longer.targets[real:] = IGNORED
        return longer

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with ``change`` applied to each tensor that has a row for each sample."""
        spans = None if self.spans is None else change(self.spans)
        return dataclasses.replace(self, inputs=change(self.inputs), targets=change(self.targets), spans=spans)


@dataclass(frozen=True)
class Windows:
    """Tokens, cut into windows of ``sequence`` tokens. Each window has one more token: the last target."""

    tokens: Tokens
    sequence: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def __getitem__(self, index: int) -> Tokens:
        start = index * self.sequence
        return self.tokens[start : start + self.sequence + 1]


class Batches:
    """Reads the batches of one rank and puts them on ``device``. :meth:`close` ends the thread that reads ahead."""

    def __init__(
        self, config: TrainerConfig, corpus: Corpus, *, dp_index: int, device: torch.device, cp_index: int = 0
    ) -> None:
        sequence = config.data.sequence
        self._global_batch = config.train.global_batch
        self._share = share_of(config, dp_index)
        self._padded_samples = config.parallel.microbatches * config.microbatch_samples
        self._seed = config.train.seed
        self._document_end = config.data.document_end
        self._device = device
        self._positions = zigzag_positions(sequence, config.parallel.cp, cp_index)
        self._device_positions = self._positions.to(device)
        self._train = Windows(corpus.train.map(), sequence)
        self._validation = Windows(corpus.validation.map(), sequence)
        self._validation_samples = config.train.validation_batches * self._global_batch
        self._prefetch = Prefetch(self._read_training, ahead=config.data.prefetch)

    @property
    def wait_s(self) -> float:
        """Seconds that the last :meth:`training` waited for its batch."""
        return self._prefetch.wait_s

    def training(self, number: int) -> Batch:
        """Return this rank's share of a batch: the number of the step, unless data were left out before it."""
        return self._on_device(self._prefetch.get(number))

    def validation(self, index: int) -> Batch:
        """Return this rank's share of validation batch ``index``: evenly spread windows, always the same."""
        windows = len(self._validation)
        chosen = [i * windows // self._validation_samples % windows for i in self._samples(index)]
        return self._on_device(self._read(self._validation, [0] * len(chosen), chosen))

    def close(self) -> None:
        """End the thread that reads ahead. :meth:`training` cannot be called afterwards."""
        self._prefetch.close()

    def _samples(self, step: int) -> range:
        start = step * self._global_batch
        return range(start + self._share.start, start + self._share.stop)

    def _read_training(self, step: int) -> Batch:
        samples, windows = self._samples(step), len(self._train)
        chosen = [sample_window(sample, windows, self._seed) for sample in samples]
        return self._read(self._train, [sample // windows for sample in samples], chosen)

    def _read(self, windows: Windows, epochs: Sequence[int], chosen: Sequence[int]) -> Batch:
        tokens = np.stack([windows[index] for index in chosen])
        whole = torch.from_numpy(tokens.astype(np.int64))
        spans = None if self._document_end is None else document_spans(whole[:, :-1], self._document_end)
        real = Batch(
            inputs=whole.index_select(1, self._positions),
            targets=whole.index_select(1, self._positions + 1),
            positions=self._device_positions,
            spans=None if spans is None else spans.index_select(1, self._positions),
            fingerprint=fingerprint(epochs, chosen, tokens),
        )
        return self._pinned(real.padded(self._padded_samples))

    def _pinned(self, batch: Batch) -> Batch:
        """Pin the batch if it goes to a GPU, so that the training thread need not wait for the copy."""
        if self._device.type != "cuda":
            return batch
        with torch.cuda.device(self._device):  # In a new thread, the current GPU is the first one, not the rank's.
            return batch.changed(Tensor.pin_memory)

    def _on_device(self, batch: Batch) -> Batch:
        return batch.changed(lambda tensor: tensor.to(self._device, non_blocking=True))


def share_of(config: TrainerConfig, dp_index: int) -> range:
    """Return which samples of a global batch a dp rank has. If they do not come out even, the first ranks have more."""
    size, larger = divmod(config.train.global_batch, config.parallel.dp)
    start = dp_index * size + min(dp_index, larger)
    return range(start, start + size + (dp_index < larger))


def sample_window(sample: int, windows: int, seed: int) -> int:
    """Return the window that is sample number ``sample`` of the run. Each epoch has all windows, in a new order."""
    epoch, index = divmod(sample, windows)
    return permuted(index, windows, f"{seed}/{epoch}".encode())


def permuted(index: int, size: int, key: bytes) -> int:
    """Return the image of ``index`` under a permutation of range(size) that ``key`` (at most 64 bytes) selects.

    A Feistel network permutes the next power of four. It is applied again until the result is below ``size`` (Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). This needs no table of the order, so that a resumed run
    finds any sample at the same cost.
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


def fingerprint(epochs: Sequence[int], windows: Sequence[int], tokens: Tokens) -> bytes:
    """Return 16 bytes that identify a batch: a BLAKE2b over its epochs, its windows and ``tokens`` [samples, length].

    The epoch is part of it, so that a window of the next epoch does not count as a repetition.
    """
    digest = hashlib.blake2b(digest_size=16)
    for epoch, window in zip(epochs, windows, strict=True):
        digest.update(epoch.to_bytes(8) + window.to_bytes(8))
    digest.update(tokens.data)
    return digest.digest()


def document_spans(tokens: Tensor, end: int) -> Tensor:
    """Return what each token may see: int64 [samples, sequence, 2], from int64 ``tokens`` [samples, sequence].

    The two numbers are the place in the sample where the token's document begins, and the place of the token itself.
    ``end`` is the token that ends a document, and belongs to it.
    """
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    begins = torch.where(tokens == end, places + 1, 0).roll(1, dims=1)
    begins[:, 0] = 0  # the last token has come round
    return torch.stack([begins.cummax(dim=1).values, places], dim=-1)
