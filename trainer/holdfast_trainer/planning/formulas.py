"""Formulas as text: the plan computes with them, and `holdfast plan --explain` shows them with their numbers."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

_FUNCTIONS = {"__builtins__": {}, "min": min, "max": max, "sqrt": math.sqrt, "log2": math.log2, "ceil": math.ceil}


@dataclass(frozen=True)
class Term:
    """One use of a formula."""

    name: str
    unit: str
    """``s``, ``bytes``, ``FLOP``, ``share`` (from 0 to 1), or "" for a number without a unit."""
    formula: str
    numbers: Mapping[str, float]
    value: float


_seen: ContextVar[list[Term] | None] = ContextVar("seen", default=None)


class Formula:
    """A formula, such as ``(ranks - 1) / ranks * size``. Python computes it, so that its text cannot be out of date."""

    def __init__(self, name: str, unit: str, text: str) -> None:
        self.name = name
        self.unit = unit
        self.text = text
        self._code = compile(text, name, "eval")

    def __call__(self, what: str = "", /, **numbers: float) -> float:
        """Return the value for ``numbers``, by their names in the formula. ``what``: what it is computed for."""
        # The text is a constant of this package, and no input reaches it.
        value = float(eval(self._code, _FUNCTIONS, numbers))
        seen = _seen.get()
        if seen is not None:
            seen.append(Term(f"{what} {self.name}".lstrip(), self.unit, self.text, numbers, value))
        return value


@contextlib.contextmanager
def explaining() -> Iterator[list[Term]]:
    """Collect every use of a formula within the block, in order."""
    terms: list[Term] = []
    token = _seen.set(terms)
    try:
        yield terms
    finally:
        _seen.reset(token)
