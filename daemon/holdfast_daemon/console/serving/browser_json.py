"""JSON for browsers: without NaN and infinity, which they refuse, and as merge patches (RFC 7386) of what is new."""

import json
import math
from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]


def difference(old: Document, new: Document) -> dict[str, Any]:
    """Return the patch that makes ``new`` of ``old``; {}: there is no difference.

    Lists are replaced whole. In a patch null means that a key is removed, so that a key with null and a key that is
    absent are the same to a reader.
    """
    patch: dict[str, Any] = {name: None for name, value in old.items() if name not in new and value is not None}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = difference(before, value)
            if inner:
                patch[name] = inner
        elif value != before or type(value) is not type(before):
            patch[name] = value
    return patch


def finite(value: object) -> object:
    """Return ``value`` with null in the place of each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def encoded(value: object) -> bytes:
    """Return the JSON of a value: UTF-8, on one line."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:  # most values are finite: only the others are copied
        text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return text.encode()
