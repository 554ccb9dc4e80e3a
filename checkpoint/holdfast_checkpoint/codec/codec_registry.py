"""The codecs in which a shard stores tensors, by the name that its index gives."""

import importlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, cast

BYTE_PLANES = "byte-planes"
"""Codec that writers use."""
RAW = "raw"
"""Codec that writers use if compressing would take cores from training."""

_MODULES = {BYTE_PLANES: "holdfast_checkpoint.codec.byte_planes", RAW: "holdfast_checkpoint.codec.raw"}
"""Modules of the codecs. Each is imported on first use: a process that reads no checkpoint needs neither numpy nor
zstandard."""

Descriptor: TypeAlias = dict[str, Any] | None
"""JSON that the index keeps with a tensor, because its codec needs it to decode the payload; None if there is none."""


class Compression(StrEnum):
    """When writers compress tensors. They store the others raw, which takes a sixth of the CPU time."""

    AUTO = "auto"
    """Compress unless the writer has to wait for a core: then the ranks need it."""
    ALWAYS = "always"
    NEVER = "never"


class PayloadError(ValueError):
    """A payload does not decode; the message completes "tensor x ..."."""


class Payload(Protocol):
    """The stored bytes of one tensor, which a codec reads once, from front to back."""

    def read(self, size: int, /) -> bytes | memoryview:
        """Return the next bytes, at most ``size``; none at the end. They are valid until the next call."""


class Previous(Protocol):
    """The raw bytes of an earlier state of a tensor; a memoryview is one."""

    def __getitem__(self, part: slice, /) -> memoryview:
        """Return a part of the bytes, valid until the next call. Codecs ask for each part once, in order."""


class RawBytes(Previous, Protocol):
    """The raw bytes of a tensor that is to be encoded; a memoryview is one."""

    def __len__(self) -> int: ...


class TensorCodec(Protocol):
    """One way to store a tensor's raw bytes. The modules in _MODULES are codecs."""

    def encode(
        self,
        raw: RawBytes,
        dtype: str,
        store: Callable[[bytes | memoryview], None],
        *,
        previous: Previous | None = None,
        decoded: Callable[[memoryview], None] | None = None,
    ) -> Descriptor:
        """Pass the payload to ``store``, piece by piece, and return its descriptor.

        The descriptor comes back to :meth:`decode`. ``dtype`` is spelt as in a TensorEntry. The codec may use
        ``previous``, which has the same size as ``raw``. With ``decoded``, every piece is decoded before it is stored,
        and ``decoded`` gets the result: the bytes of ``raw``, in order. Raises PayloadError if the result is anything
        else.
        """

    def needs_previous(self, descriptor: Descriptor) -> bool:
        """Return whether :meth:`decode` needs the ``previous`` of :meth:`encode`."""

    def decode(
        self,
        payload: Payload,
        dtype: str,
        descriptor: Descriptor,
        nbytes: int,
        into: memoryview | None,
        *,
        previous: Previous | None = None,
    ) -> Iterator[memoryview]:
        """Yield the ``nbytes`` raw bytes in order, in parts of any size.

        The parts are in ``into``, which has that size, or else in a buffer that the next part overwrites. Reads the
        payload to its end. Raises PayloadError if it is not one of :meth:`encode`.
        """


def codec_named(name: str) -> TensorCodec:
    """Return a codec. Raises PayloadError if this version has none of that name, ImportError if it lacks a package."""
    if name not in _MODULES:
        raise PayloadError(f"is stored with codec {name!r}, which this version does not know")
    return cast(TensorCodec, importlib.import_module(_MODULES[name]))
