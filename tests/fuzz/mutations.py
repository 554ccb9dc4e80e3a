"""Damages bytes and JSON documents at random, as disks, crashes and other programs do."""

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

Mutate = Callable[[Random, bytes], bytes]
"""Returns damaged bytes of a file."""

_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, (1 << 15) - 1, (1 << 31) - 1, 1 << 31, (1 << 45), (1 << 63) - 1, (1 << 64) - 1)
_DEPTHS = (500, 900, *range(940, 1000, 5), 100_000)
"""Levels of lists. Reading, writing and comparing them end at other depths."""


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Return ``data`` with one to four changes of its bytes."""
    for _ in range(random.randint(1, 4)):
        data = random.choice((_flip, _cut, _repeat, _insert, _set_number))(random, data)
    return data


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return b"\x00"
    found = bytearray(data)
    found[_place(random, data)] ^= 1 << random.randrange(8)
    return bytes(found)


def _cut(random: Random, data: bytes) -> bytes:
    start, stop = sorted((_place(random, data), _place(random, data)))
    return random.choice((data[:stop], data[start:], data[:start] + data[stop:]))


def _repeat(random: Random, data: bytes) -> bytes:
    start, stop = sorted((_place(random, data), _place(random, data)))
    stop = min(stop, start + 4096)
    return data[:start] + data[start:stop] * random.randint(2, 5) + data[stop:]


def _insert(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    odd = random.choice((random.randbytes(random.randint(1, 32)), bytes(64), b'"', b"}", b"\xed\xa0\x80", b"[" * 999))
    return data[:at] + odd + data[at:]


def _set_number(random: Random, data: bytes) -> bytes:
    """Overwrite a field of 1 to 8 bytes: lengths and offsets are such fields."""
    width, at = random.choice((1, 2, 4, 8)), _place(random, data)
    number = random.choice(_EXTREMES) & ((1 << 8 * width) - 1)
    return data[:at] + number.to_bytes(width, random.choice(("little", "big"))) + data[at + width :]


def _place(random: Random, data: bytes) -> int:
    """Return a place in ``data``, every second time near the start: headers are there."""
    return random.randrange(min(len(data), 256) if random.random() < 0.5 else len(data)) if data else 0


def mutate_json(random: Random, data: bytes) -> bytes:
    """Return the text of a JSON document with one to four values that are not what they should be."""
    document = json.loads(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        document = _changed(random, document)
    depth = random.choice(_DEPTHS)
    text = json.dumps(document).replace('"DEEP"', "[" * depth + "]" * depth)
    return text.replace('"HUGE"', "9" * 5000).encode()


def changed_object(random: Random, document: dict[str, Any]) -> dict[str, Any]:
    """Return an object with one odd value in it, or a key too few or too many."""
    found = dict(document)
    key = random.choice([*found, "unknown"])
    if key not in found:
        found[key] = _odd(random)
    elif random.random() < 0.15:
        del found[key]
    else:
        found[key] = _changed(random, found[key])
    return found


def _changed(random: Random, value: Any) -> Any:
    """Return ``value`` with one odd value in place of a part, however deep that is."""
    if not value or not isinstance(value, dict | list) or random.random() < 0.15:
        return _odd(random)
    if isinstance(value, dict):
        return changed_object(random, value)
    at = random.randrange(len(value))
    if random.random() < 0.15:
        return value[:at] + value[at + 1 :] if random.random() < 0.5 else value[:at] + value[at : at + 1] + value[at:]
    return [*value[:at], _changed(random, value[at]), *value[at + 1 :]]


def _odd(random: Random) -> Any:
    number = random.choice(_EXTREMES)
    return random.choice(
        (
            None, True, [], {}, "", "text", [None], {"a": None}, [[1, 2], [3]], "\ud800", "\x00", "\x1b[2J", "../..",
            "a" * 5000, number, -number, 10**400, 0.5, 1e308, -0.0, math.nan, math.inf, -math.inf, "DEEP", "HUGE",
        )
    )  # fmt: skip


def either(*mutations: Mutate) -> Mutate:
    """Return a mutation that does one of ``mutations``."""
    return lambda random, data: random.choice(mutations)(random, data)
