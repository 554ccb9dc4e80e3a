"""Reads pickles of plain data: torch writes its recorder's dumps in this form. No pickle can run code here."""

import pickle
import pickletools
import re
from io import BytesIO
from typing import NoReturn

MOST_MEMORY_BYTES = 1 << 30
"""Most memory for what a dump describes. The JSON of 20,000 calls with stacks, some 100 MB, needs 600 MB."""

SLOT_BYTES, SCALAR_BYTES, LIST_BYTES, DICT_BYTES = 24, 64, 96, 232
"""Memory for a reference to an object, and for one object, rounded up: measured with CPython 3.11 to 3.13."""

_LONGEST_NAME = 80
_WIDEST_CHARACTER_BYTES = 4
_DAMAGED = "it is no complete pickle: it is cut off or damaged"

_MEMORY = {
    DICT_BYTES: "EMPTY_DICT DICT",
    LIST_BYTES: "EMPTY_LIST LIST",
    SCALAR_BYTES: "BINFLOAT BININT BININT2 LONG1 LONG4 SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES"
    " BINBYTES8 SHORT_BINSTRING BINSTRING TUPLE TUPLE1 TUPLE2 TUPLE3",
    0: "PROTO FRAME BININT1 NONE NEWTRUE NEWFALSE EMPTY_TUPLE MARK POP POP_MARK DUP APPEND APPENDS SETITEM SETITEMS"
    " MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET",
}
"""Memory of an object -> the instructions that make one, all that plain data need since protocol 2."""
_PREFIX_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_CODES = {each.name: ord(each.code) for each in pickletools.opcodes}
_ARGUMENTS = {ord(each.code): each.arg.n if each.arg is not None else 0 for each in pickletools.opcodes}
_COSTS = {_CODES[name]: SLOT_BYTES + size for size, names in _MEMORY.items() for name in names.split()}
_PREFIXES = {code: _PREFIX_BYTES[_ARGUMENTS[code]] for code in _COSTS if _ARGUMENTS[code] < 0}
"""Code of an instruction -> bytes of the length before its argument."""
_NUMBERED = _CODES["LONG_BINPUT"]
_STEPS = {code: 1 + _ARGUMENTS[code] for code in _COSTS.keys() - _PREFIXES.keys() - {_NUMBERED}}
"""Code of an instruction that needs no other check -> its bytes."""
_MOST_OF_A_BYTE = max(_COSTS.values())
"""Most memory that one byte of a pickle can ask for. The characters of a text ask for less."""
_SAFE_NUMBERS = rb"r..[\x00-\x0f]\x00"
"""LONG_BINPUT of the first million of objects: a table for these takes little memory."""


def _of_size(size: int) -> bytes:
    """Return what matches an instruction of ``size`` bytes."""
    codes = b"".join(b"\\x%02x" % code for code, of_code in _STEPS.items() if of_code == size)
    return b"[%b].{%d}" % (codes, size - 1)


_RUN = re.compile(
    b"(?:" + b"|".join((*map(_of_size, sorted({*_STEPS.values()})), _SAFE_NUMBERS)) + b")*+",
    re.DOTALL,
)
"""Any number of instructions that need no other check."""
_LAST = frozenset(
    _CODES[name] for name in ("STOP", "GLOBAL", "INST", "STACK_GLOBAL", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4")
)
"""Instructions that end the reading. All but STOP name what is no plain data."""


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
    """Return the plain data of a pickle of protocol 2 or newer.

    Raises NotPlainError if it holds anything else, is damaged, or describes more than ``MOST_MEMORY_BYTES``.
    """
    # The pickles of most dumps are too small to describe much. Only larger ones are counted, which takes longer.
    if len(data) * _MOST_OF_A_BYTE <= MOST_MEMORY_BYTES:
        _check_lengths(data)
    else:
        check_memory(_memory_bytes(data))
    try:
        return _PlainUnpickler(BytesIO(data)).load()
    except NotPlainError:
        raise
    except MemoryError:
        raise NotPlainError("it is no complete pickle: it asks for more memory than there is") from None
    except Exception:  # noqa: BLE001 - a damaged pickle raises almost any exception, some without a text
        raise NotPlainError(_DAMAGED) from None


def check_memory(size: int) -> None:
    """Raise NotPlainError if ``size`` bytes of objects are more than a dump describes."""
    if size > MOST_MEMORY_BYTES:
        raise NotPlainError(f"it describes objects of more than {MOST_MEMORY_BYTES >> 20} MiB, and no dump needs that")


def _check_lengths(data: bytes) -> None:
    """Raise NotPlainError as ``_memory_bytes`` does. Regular expressions skip what needs no check."""
    at = 0
    while at < len(data):
        run = _RUN.match(data, at)
        at = run.end() if run is not None else at
        code = data[at] if at < len(data) else pickle.STOP[0]
        if code in _PREFIXES:
            at = _end_of_counted(data, at)
        elif code == _NUMBERED:
            at = _end_of_numbered(data, at)
        elif code in _LAST:
            return
        else:
            raise NotPlainError(_DAMAGED)


def _end_of_counted(data: bytes, at: int) -> int:
    """Return where an instruction ends that says how long its argument is."""
    start = at + 1 + _PREFIXES[data[at]]
    end = start + int.from_bytes(data[at + 1 : start], "little")
    if end > len(data):
        raise NotPlainError(_DAMAGED)
    return end


def _end_of_numbered(data: bytes, at: int) -> int:
    # pickle makes its table of known objects as long as the largest number, and numbers count from 0.
    if int.from_bytes(data[at + 1 : at + 5], "little") > at:
        raise NotPlainError(_DAMAGED)
    return at + 5


def _memory_bytes(data: bytes) -> int:
    """Return how much memory reading a pickle takes at most, by its instructions. Nothing is built yet.

    Raises NotPlainError for a length that reaches beyond the end. pickle would reserve memory for some of those.
    """
    at, size = 0, 0
    while at < len(data):
        code = data[at]
        if code in _STEPS:
            at += _STEPS[code]
        elif code == _NUMBERED:
            at = _end_of_numbered(data, at)
        elif code in _PREFIXES:
            start = at + 1 + _PREFIXES[code]
            at = _end_of_counted(data, at)
            size += _WIDEST_CHARACTER_BYTES * (at - start)
        elif code in _LAST:
            break
        else:
            raise NotPlainError(_DAMAGED)
        size += _COSTS[code]
    return size
