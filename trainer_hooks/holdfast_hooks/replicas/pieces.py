"""Cuts replicated tensors into pieces of one size, and chooses the pieces to check in a step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 1 << 20
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Piece:
    """Bytes that several ranks hold alike: a range of a large tensor, or several small tensors."""

    name: str
    words: "tuple[torch.Tensor, ...]"
    """Flat tensors of integers that view the parameters."""

    def sum(self) -> "torch.Tensor":
        """Return the sum of all words as an int64 scalar. Any one flipped bit changes it."""
        import torch

        return (torch.cat(self.words) if len(self.words) > 1 else self.words[0]).sum()


def cut(tensors: "Mapping[str, torch.Tensor]", *, holders: str) -> list[Piece]:
    """Return the pieces of ``tensors``, none larger than PIECE_BYTES. Small tensors share one.

    Tensors with gaps between their elements are left out. A piece's name has ``holders`` and the range of its elements
    or its first and last tensor: ``model/up.weight@0[0:262144]``, ``model/norm.bias@0..model/norm.weight@0``.
    """
    pieces: list[Piece] = []
    small: dict[str, torch.Tensor] = {}
    for tensor_name in sorted(tensors):
        words = as_words(tensors[tensor_name])
        if words is None:
            continue
        name = f"{tensor_name}@{holders}"
        if words.nbytes >= PIECE_BYTES:
            pieces += _ranges(name, words, per_element=words.numel() / tensors[tensor_name].numel())
            continue
        if sum(other.nbytes for other in small.values()) + words.nbytes > PIECE_BYTES:
            pieces.append(_packed(small))
            small = {}
        small[name] = words
    return [*pieces, _packed(small)] if small else pieces


def as_words(tensor: "torch.Tensor") -> "torch.Tensor | None":
    """Return the memory of ``tensor`` as a flat tensor of the widest integers that fit, or None if it has gaps."""
    import torch

    strides: tuple[int, ...] = tensor.stride()
    by_stride = tensor.detach().permute(sorted(range(tensor.ndim), key=strides.__getitem__, reverse=True))
    if not by_stride.is_contiguous():
        return None
    flat = by_stride.reshape(-1)
    offset = flat.storage_offset() * flat.element_size()
    sizes = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
    return flat.view(next(dtype for size, dtype in sizes.items() if flat.nbytes % size == offset % size == 0))


def _ranges(name: str, words: "torch.Tensor", *, per_element: float) -> list[Piece]:
    length = PIECE_BYTES // words.element_size()
    starts = range(0, words.numel(), length)
    ends = [min(start + length, words.numel()) for start in starts]
    return [
        Piece(f"{name}[{int(start / per_element)}:{int(end / per_element)}]", (words[start:end],))
        for start, end in zip(starts, ends, strict=True)
    ]


def _packed(small: "Mapping[str, torch.Tensor]") -> Piece:
    first, *others = small
    return Piece(f"{first}..{others[-1]}" if others else first, tuple(small.values()))


class Rotation(Generic[_Part]):
    """Chooses the pieces of one set of ranks for each step. The choice depends on the step alone, so that ranks agree.

    Step s begins at piece s * stride, modulo an odd number that has no common factor with the stride. So a rank that
    checks only steps 0, m, 2m, ..., with m a power of two, still checks every piece in the end. A stride near the
    golden ratio spreads the pieces of successive checks evenly.
    """

    def __init__(self, pieces: Sequence[_Part]) -> None:
        self._pieces = pieces
        self._modulus = len(pieces) | 1
        near = max(1, round(self._modulus * _GOLDEN_RATIO))
        self._stride = next(n for n in range(near, 0, -1) if math.gcd(n, self._modulus) == 1)

    def at(self, step: int, count: int) -> list[_Part]:
        """Return up to ``count`` pieces for ``step``. A larger count gives the same pieces and more."""
        if count >= len(self._pieces):
            return list(self._pieces)
        start = step * self._stride
        places = [(start + index) % self._modulus for index in range(count)]
        return [self._pieces[place] for place in places if place < len(self._pieces)]
