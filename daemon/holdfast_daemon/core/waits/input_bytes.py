"""Bytes of a call's inputs, from the shapes and types that its recorder names."""

import re
from math import prod

_SHAPE = re.compile(r"\[([\d, ]*)\]")
_DTYPE = re.compile(r"'(\w+)'")
_ITEM_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of an element, by the name of its type in recorders."""


def input_bytes(sizes: str, dtypes: str) -> int:
    """Return the bytes of all inputs of a call. 0: not known, or it has none."""
    shapes = [[int(size) for size in shape.replace(",", " ").split()] for shape in _SHAPE.findall(sizes)]
    items = [_ITEM_BYTES.get(name, 0) for name in _DTYPE.findall(dtypes)]
    if len(shapes) != len(items) or 0 in items:
        return 0
    return sum(prod(shape) * item for shape, item in zip(shapes, items, strict=True))
