"""Hashes of plain parameters: tensors that no wrapper is known to keep equal between ranks.

A loop that reduces gradients by itself holds replicas in such tensors, and so does an optimizer that gathers what other
ranks have updated. Other loops hold each rank's own numbers in them. A rank cannot know, and asks nobody. It reports
hashes, and the daemon learns which ranks hold the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast_hooks.replicas.pieces import PIECE_BYTES, Rotation, as_words

if TYPE_CHECKING:
    import torch

SAMPLE = ""
"""Name of the part that samples many parameters."""

_SAMPLED_PARAMETERS = 16
_SAMPLED_WORDS = 256
_RANGES = 256
"""The daemon keeps two numbers for each part. So a large model has larger ranges, and many parameters share parts.

There are at most three times as many parts: one third of small parameters, two of ranges of larger ones.
"""


@dataclass(frozen=True)
class _Range:
    """Words of one parameter. It keeps no view of them, which would keep memory alive that its owner has replaced."""

    name: str
    parameter: "torch.Tensor"
    start: int
    end: int
    words: int
    """Number of words of the whole parameter."""

    def sum(self) -> "torch.Tensor":
        """Return the sum of the words as an int64 scalar.

        Raises ValueError if the parameter has another size now, RuntimeError if its memory is freed.
        """
        words = as_words(self.parameter.detach())
        if words is None or words.numel() != self.words:
            raise ValueError(f"{self.name} is no longer what it was at first")
        return words[self.start : self.end].sum()


@dataclass(frozen=True)
class _Part:
    """A range of one parameter, or several parameters of one device."""

    ranges: tuple[_Range, ...]

    @property
    def name(self) -> str:
        first, last = self.ranges[0].name, self.ranges[-1].name
        return first if first == last else f"{first}..{last}"

    def sum(self) -> "torch.Tensor":
        """Return the sum of all words. Any one flipped bit changes it. Raises as :meth:`_Range.sum` does."""
        total, *others = (one.sum() for one in self.ranges)
        for other in others:
            total = total + other
        return total


def _packed(small: Sequence[_Range]) -> list[_Part]:
    """Return parameters as one part each, or if they are too many, as parts of neighbours."""
    if len(small) <= _RANGES:
        return [_Part((one,)) for one in small]
    # Half of the share is that of the bytes and half is that of the number, for both cost time.
    nbytes = sum(one.parameter.nbytes for one in small)
    packs: dict[tuple[torch.device, int], list[_Range]] = {}
    share = 0.0
    for one in small:
        packs.setdefault((one.parameter.device, int(share * _RANGES)), []).append(one)
        share += (one.parameter.nbytes / nbytes + 1 / len(small)) / 2
    return [_Part(tuple(pack)) for pack in packs.values()]


class PlainParameters:
    """Sums a sample of many parameters, and some parts, in each step that is checked.

    The sample has the first words of parameters all over the model. It shows the daemon in a few steps which ranks hold
    the same. The parts take turns and cover everything: a part is a range of one parameter, or several small ones.
    """

    def __init__(self, parameters: "Mapping[str, torch.Tensor]") -> None:
        words = {name: flat for name in sorted(parameters) if (flat := as_words(parameters[name].detach())) is not None}
        self.tensors = tuple(parameters[name] for name in words)
        self.nbytes = sum(flat.nbytes for flat in words.values())
        range_bytes = max(PIECE_BYTES, math.ceil(self.nbytes / _RANGES))
        small: list[_Range] = []
        parts: list[_Part] = []
        for name, flat in words.items():
            length = range_bytes // flat.element_size()
            if length >= flat.numel():
                small.append(_Range(name, parameters[name], 0, flat.numel(), flat.numel()))
                continue
            for start in range(0, flat.numel(), length):
                end = min(start + length, flat.numel())
                name_of_range = f"{name}[words {start}:{end}]"
                parts.append(_Part((_Range(name_of_range, parameters[name], start, end, flat.numel()),)))
        self._rotation = Rotation([*_packed(small), *parts])
        on_first_device = [name for name in words if parameters[name].device == self.tensors[0].device]
        chosen = on_first_device[:: math.ceil(len(on_first_device) / _SAMPLED_PARAMETERS) or 1]
        self._sample = [
            _Range(name, parameters[name], 0, min(_SAMPLED_WORDS, words[name].numel()), words[name].numel())
            for name in chosen
        ]

    def sums(self, step: int, portions: int) -> "dict[str, torch.Tensor]":
        """Return the sums of ``step`` by the names of their parts. Raises as :meth:`_Range.sum` does."""
        import torch

        if not self._sample:
            return {}
        sampled = torch.stack([one.sum() for one in self._sample])
        # Odd factors: then two numbers that have changed places change the sum, and a flipped bit still does.
        factors = torch.arange(1, 2 * len(sampled), 2, device=sampled.device)
        return {SAMPLE: (sampled * factors).sum(), **{one.name: one.sum() for one in self._rotation.at(step, portions)}}
