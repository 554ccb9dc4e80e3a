"""The places of a state's tensors in a slot, and the copies to them."""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast_hooks.snapshots.device_copies import DeviceCopy
from holdfast_hooks.snapshots.host_copies import HostCopies
from holdfast_hooks.state.encoding import Image, TensorPart
from holdfast_hooks.state.sharding import is_dtensor, writer_of
from holdfast_proto.snapshot import DATA_OFFSET, Meta, Slot, StateTree, TensorEntry, align

if TYPE_CHECKING:
    from mmap import mmap

    import torch


@dataclass(frozen=True)
class SlotLayout:
    """The place of each tensor in a slot: one after the other, aligned.

    It is computed once, and again only if a name, shape or dtype of the state changes.
    """

    signature: tuple[Any, ...]
    entries: tuple[TensorEntry, ...]
    data_bytes: int

    @functools.cached_property
    def entries_json(self) -> bytes:
        """The entries as Meta encodes them. Kept, because encoding takes longer than copying a small state."""
        return json.dumps([dataclasses.asdict(entry) for entry in self.entries], separators=(",", ":")).encode()


@dataclass(frozen=True)
class LaidOutMeta(Meta):
    """A Meta whose entries are encoded once per layout, and not once per snapshot."""

    layout: SlotLayout
    encoded: bytes

    @classmethod
    def of(cls, tree: StateTree, layout: SlotLayout, coordinates: Mapping[str, int]) -> "LaidOutMeta":
        """Build the meta of one snapshot."""
        head = json.dumps({"tree": tree, "coordinates": dict(coordinates)}, separators=(",", ":")).encode()
        encoded = b'%b,"tensors":%b}' % (head[:-1], layout.entries_json)
        return cls(tree, layout.entries, layout, encoded, coordinates=dict(coordinates))

    def encode(self) -> bytes:
        """Return the UTF-8 JSON of this meta."""
        return self.encoded


def lay_out(image: Image, known: SlotLayout | None) -> SlotLayout:
    """Return the layout of ``image``: ``known`` itself if it still fits."""
    signature = tuple(
        (part.name, part.local.dtype, part.local.shape, part.global_shape, part.global_offset) for part in image.parts
    )
    if known is not None and known.signature == signature:
        return known
    entries: list[TensorEntry] = []
    end = DATA_OFFSET
    for part in image.parts:
        entry = _entry(part, align(end))
        entries.append(entry)
        end = entry.offset + entry.nbytes
    return SlotLayout(signature, tuple(entries), end - DATA_OFFSET)


def dtype_name(tensor: "torch.Tensor") -> str:
    """Return the dtype in the spelling of a TensorEntry."""
    return str(tensor.dtype).removeprefix("torch.")


def check_sizes(entries: Iterable[TensorEntry]) -> None:
    """Raise ValueError unless each entry has as many bytes as a tensor of its type and shape.

    The bytes are read into such a tensor, so more of them would overwrite other memory.
    """
    import torch

    for entry in entries:
        dtype = getattr(torch, entry.dtype, None)
        if not isinstance(dtype, torch.dtype) or math.prod(entry.shape) * dtype.itemsize != entry.nbytes:
            raise ValueError(
                f"{entry.name[:80]!r} has {entry.nbytes} bytes, and is no {entry.dtype[:20]} {entry.shape[:8]}"
            )


def _entry(part: TensorPart, offset: int) -> TensorEntry:
    local = part.local
    return TensorEntry(
        name=part.name,
        dtype=dtype_name(local),
        shape=tuple(local.shape),
        offset=offset,
        nbytes=local.numel() * local.element_size(),
        global_shape=part.global_shape,
        global_offset=part.global_offset,
        writer=writer_of(part.name, part.source) if is_dtensor(part.source) else None,
    )


class _Place(NamedTuple):
    """A tensor's place in a mapped slot."""

    tensor: "torch.Tensor"
    address: int
    nbytes: int


class SlotTensors:
    """Tensors that view one mapped slot, to copy a state into it."""

    def __init__(self, slot: Slot, entries: Sequence[TensorEntry]) -> None:
        self.unchanged_bytes = 0
        """Bytes that the last :meth:`copy` found in place."""
        tensors = [place(slot, entry) for entry in entries]
        self._places = [
            tensor if tensor is None else _Place(tensor, tensor.data_ptr(), tensor.nbytes) for tensor in tensors
        ]

    def copy(self, parts: Iterable[TensorPart]) -> list[DeviceCopy]:
        """Copy the tensors in host memory that differ from their places; return the copies left to the device."""
        left: list[DeviceCopy] = []
        with HostCopies() as copies:
            for place, part in zip(self._places, parts, strict=True):
                if place is None:
                    continue
                source = part.local
                if not source.is_cpu:
                    left.append(DeviceCopy(place.tensor, part))
                elif _is_stored_in_order(source):
                    copies.add(place.address, source.data_ptr(), place.nbytes)  # while threads copy those before
                else:
                    place.tensor.copy_(source.detach())
        self.unchanged_bytes = copies.unchanged_bytes
        return left


def _is_stored_in_order(tensor: "torch.Tensor") -> bool:
    """Whether its memory holds its elements, in order and without gaps, so that bytes can be copied."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def place(slot: Slot, entry: TensorEntry) -> "torch.Tensor | None":
    """Return an entry as a tensor that views the slot, or None if it has no elements."""
    return as_tensor(slot.buffer, entry, entry.offset) if entry.nbytes else None


def as_tensor(buffer: "bytearray | mmap", entry: TensorEntry, offset: int) -> "torch.Tensor":
    """Return the bytes of an entry, which has elements, as a tensor that views ``buffer`` from ``offset`` on."""
    import torch

    stored = torch.frombuffer(buffer, dtype=torch.uint8, count=entry.nbytes, offset=offset)
    return stored.view(getattr(torch, entry.dtype)).view(entry.shape)
