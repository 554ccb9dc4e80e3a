"""Reads pickles of plain data: torch writes its recorder's dumps in this form. No pickle can run code here."""

import pickle
from io import BytesIO
from typing import NoReturn

_LONGEST_NAME = 80


class NotPlainError(ValueError):
    """The pickle holds more than plain data, or is damaged."""


class _PlainUnpickler(pickle.Unpickler):
    """Builds numbers, texts, lists, tuples and dicts. All else needs a global name, and each of those is refused."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        found = "".join(letter if letter.isprintable() else "?" for letter in f"{module}.{name}"[:_LONGEST_NAME])
        raise NotPlainError(f"it refers to {found}, and a recorder's dump holds plain data only")

    def persistent_load(self, _identity: object, /) -> NoReturn:
        raise NotPlainError("it refers to an object outside of it")


def load_plain(data: bytes) -> object:
    """Return the plain data of a pickle. Raises NotPlainError if it holds anything else, or is damaged."""
    try:
        return _PlainUnpickler(BytesIO(data)).load()
    except NotPlainError:
        raise
    except MemoryError:
        raise NotPlainError("it is no complete pickle: it asks for more memory than there is") from None
    except Exception:  # noqa: BLE001 - a damaged pickle raises almost any exception, some without a text
        raise NotPlainError("it is no complete pickle: it is cut off or damaged") from None
