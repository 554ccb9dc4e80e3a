"""Finds NaN and infinite numbers in the bytes of a tensor, without torch: it looks at the bits of the exponents."""

import math
from dataclasses import dataclass

import numpy as np

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e5m2": 1, "float8_e4m3fn": 1,
    "float8_e5m2fnuz": 1, "float8_e4m3fnuz": 1, "float8_e8m0fnu": 1, "complex64": 8, "complex128": 16, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of one element, by the name of its dtype as torch prints it."""

_EXPONENTS = {
    "float64": ("<u8", 0x7FF0 << 48, (1 << 63) - 1),
    "float32": ("<u4", 0x7F80_0000, 0x7FFF_FFFF),
    "float16": ("<u2", 0x7C00, 0x7FFF),
    "bfloat16": ("<u2", 0x7F80, 0x7FFF),
    "float8_e5m2": ("u1", 0x7C, 0x7F),
}
"""dtype -> integer of the same size, its bits of the exponent, all its bits but that of the sign."""
_SAME_BITS = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
_ONLY_NAN = {"float8_e4m3fn": (0x7F, 0x7F), "float8_e5m2fnuz": (0x80, 0xFF), "float8_e4m3fnuz": (0x80, 0xFF),
             "float8_e8m0fnu": (0xFF, 0xFF)}  # fmt: skip
"""dtype of 8 bits without infinity -> the bits of NaN, and the bits to compare."""


@dataclass
class ValueCounts:
    """What a part of a tensor holds."""

    nan: int = 0
    infinite: int = 0
    nonzero: int = 0
    """Finite numbers other than zero."""

    @property
    def is_bad(self) -> bool:
        """Whether this is no trained state: it has NaN, or infinite numbers next to numbers other than zero.

        Masks (zero and minus infinity) and observers of ranges (infinite alone) are as they should be.
        """
        return self.nan > 0 or (self.infinite > 0 and self.nonzero > 0)

    def add(self, other: "ValueCounts") -> None:
        """Add the counts of another part."""
        self.nan += other.nan
        self.infinite += other.infinite
        self.nonzero += other.nonzero


def is_floating(dtype: str) -> bool:
    """Return whether numbers of this dtype can be NaN."""
    return dtype in _EXPONENTS or dtype in _SAME_BITS or dtype in _ONLY_NAN


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element, or 0 if the dtype is not known."""
    return ITEM_BYTES.get(dtype, 0)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor, or 0 if the dtype is not known."""
    return math.prod(shape) * item_bytes(dtype)


def count_values(data: bytes, dtype: str) -> ValueCounts:
    """Count what ``data`` holds, whole elements of a floating ``dtype`` in little-endian order."""
    if dtype in _ONLY_NAN:
        bits, mask = _ONLY_NAN[dtype]
        found = int(np.count_nonzero((np.frombuffer(data, "u1") & mask) == bits))
        return ValueCounts(nan=found, nonzero=len(data) - found)
    kind, exponent, unsigned = _EXPONENTS[_SAME_BITS.get(dtype, dtype)]
    numbers = np.frombuffer(data, kind)
    magnitudes = numbers & numbers.dtype.type(unsigned)
    special = magnitudes >= numbers.dtype.type(exponent)
    count = int(np.count_nonzero(special))
    if not count:
        return ValueCounts(nonzero=int(magnitudes.any()))
    infinite = int(np.count_nonzero(magnitudes == numbers.dtype.type(exponent)))
    return ValueCounts(nan=count - infinite, infinite=infinite, nonzero=int(np.count_nonzero(magnitudes[~special])))
