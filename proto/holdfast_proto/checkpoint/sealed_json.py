"""JSON documents that carry their own digest, so that one flipped byte is noticed.

``{"body": ..., "digest": "<BLAKE2b-128 of the body's text, hexadecimal>"}`` and a newline. There is one way to
write a given body: a reader encodes what it decoded and compares, so that bytes outside the body count too.
"""

import hashlib
import json
from typing import Any

DIGEST_BYTES = 16


class SealError(ValueError):
    """A document is not what its writer wrote."""


def new_digest() -> "hashlib.blake2b":
    """Return a hash object for the digests of checkpoints: BLAKE2b with 128 bits."""
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of ``data``, hexadecimal."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def seal(body: Any) -> bytes:
    """Return the document of ``body``, which must be JSON with string keys."""
    text = json.dumps(body, separators=(",", ":")).encode()
    return b'{"body":' + text + b',"digest":"' + digest_of(text).encode() + b'"}\n'


def unseal(data: bytes) -> Any:
    """Return the body of a document. Raises SealError if any byte of it differs from what was written."""
    try:
        body = json.loads(data)["body"]
    except (ValueError, LookupError, TypeError) as error:
        raise SealError("is damaged: not a sealed JSON document") from error
    if seal(body) != data:
        raise SealError("is damaged: its contents do not match its digest")
    return body
