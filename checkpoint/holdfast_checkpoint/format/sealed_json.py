"""JSON documents that carry their own digest, so that one flipped byte is noticed.

``{"body": ..., "digest": "<XXH3-128 of the body's text, hexadecimal>"}`` and a newline. There is one way to write a
given body. A reader encodes what it decoded and compares all bytes, so that damage outside the body is noticed, too.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xxhash  # imported on use: hooks that never read a checkpoint's files do without the package


class SealError(ValueError):
    """A document is not the one that its writer wrote. The message completes "FILE ..."."""


def new_digest() -> "xxhash.xxh3_128":
    """Return a hash object for the digests of checkpoints: XXH3 with 128 bits."""
    import xxhash

    return xxhash.xxh3_128()


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of ``data``, hexadecimal."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def seal(body: Mapping[str, object]) -> bytes:
    """Return the document of ``body``, a JSON object."""
    text = json.dumps(body, separators=(",", ":")).encode()
    return b'{"body":' + text + b',"digest":"' + digest_of(text).encode() + b'"}\n'


def unseal(data: bytes) -> dict[str, Any]:
    """Return the body of a document. Raises SealError if any byte differs from what :func:`seal` wrote."""
    body = _body(data)
    _compare(body, data)
    return body


def unseal_format(data: bytes, number: int) -> dict[str, Any]:
    """Return the body of a document without its key ``format``.

    Raises SealError as :func:`unseal` does, and ValueError if ``format`` is not ``number``.
    """
    body = _body(data)
    found = body.get("format", number)
    if found != number:  # checked first: another format may have another digest, and that is no damage
        raise ValueError(f"it has format {found!r:.40}, not {number}")
    _compare(body, data)
    if body.pop("format", None) is None:
        raise ValueError("it names no format")
    return body


def _compare(body: Mapping[str, object], data: bytes) -> None:
    try:
        is_whole = seal(body) == data
    except RecursionError:  # writing takes more of the stack than reading
        is_whole = False
    if not is_whole:
        raise SealError("is damaged: its contents do not match its digest")


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)["body"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SealError("is damaged: not a sealed JSON document") from error
    if not isinstance(body, dict):
        raise SealError("is damaged: not a sealed JSON object")
    return body
