"""JSON without NaN and infinity, which browsers refuse: they become null."""

import json
import math


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
