"""JSON merge patches (RFC 7386): what has changed between two versions of a document."""

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
