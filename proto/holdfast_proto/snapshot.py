"""Layout of a snapshot slot: a file that holds one rank's state at the end of one step.

The agent creates slots, in shared memory if there is room. A rank maps them and copies its state in. The agent reads
them even if the rank is gone. ::

    0      header, 4096 bytes (see _HEADER)
    4096   tensors, each at a multiple of 64 bytes, row-major, native little-endian
    ...    meta: UTF-8 JSON {"tree": ..., "coordinates": ..., "tensors": [TensorEntry, ...]}

The rank owns a slot unless ``persist`` or ``replica`` is set: then the slot is pinned. The rank pins it when it commits
a snapshot that is to become a checkpoint, or a replica snapshot. The agent releases it once the shard is written, or
cannot be.

Nothing here is locked. The state is written last, so that a reader of COMPLETE finds everything else in place. A rank
that dies before that leaves WRITING, and such a slot holds no snapshot.
"""

import contextlib
import json
import mmap
import os
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

from holdfast_proto.limits import is_count

MAGIC = b"HFSNAP\x00\x01"
DATA_OFFSET = 4096
"""Offset of the first tensor in bytes: the header has a page of its own."""
ALIGNMENT = 64
"""Alignment of each tensor in bytes: a cache line."""
MOST_META_BYTES = 128 << 20
"""Most bytes of the meta: 100,000 tensors take a quarter of it. A damaged header may claim the whole slot."""

# magic, state, persist, generation, step, rank, replica, data bytes, meta offset, meta bytes
_HEADER = struct.Struct("<8sIIQqIIQQQ")
_STATE = struct.Struct("<I")
_STATE_OFFSET = 8
_PERSIST_OFFSET = 12
_REPLICA_OFFSET = 36

StateTree: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
"""Nesting of a state, or a part of it, as JSON. Only the hooks know the encoding."""


class SlotState(IntEnum):
    """Whether a slot's contents may be read."""

    EMPTY = 0
    WRITING = 1
    COMPLETE = 2


class SnapshotError(Exception):
    """A slot is too small, of another version, or holds no complete snapshot. The message names the slot."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a snapshot: this rank's part, and its place in the whole tensor."""

    name: str
    """Name of the tensor. Every layout shares it."""
    dtype: str
    """Type as torch prints it, without the prefix: ``float32``, ``bfloat16``, ``int64``."""
    shape: tuple[int, ...]
    """Shape of this rank's part."""
    offset: int
    """Bytes from the start of the slot to the part."""
    nbytes: int
    """Bytes of the part."""
    global_shape: tuple[int, ...]
    """Shape of the whole tensor."""
    global_offset: tuple[int, ...]
    """Index at which this part starts in the whole tensor, for each dimension; zeros if it is the whole."""
    writer: int | None = None
    """Rank whose shard stores this part, of all ranks that hold the same part of a distributed tensor.

    None: the tensor is this rank's own, whatever others have under this name.
    """

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> "TensorEntry":
        """Return the entry with these fields, in which JSON has turned tuples into lists. Raises ValueError."""
        try:
            tuples = {key: tuple(entry[key]) for key in ("shape", "global_shape", "global_offset")}
            found = cls(**{**entry, **tuples})
        except (LookupError, TypeError) as error:
            raise ValueError(f"a tensor in it has other fields: {error}") from None
        numbers = (found.offset, found.nbytes, *found.shape, *found.global_shape, *found.global_offset)
        if not all(map(is_count, numbers)) or not (found.writer is None or is_count(found.writer)):
            raise ValueError("a tensor in it has a number that is none")
        if not isinstance(found.name, str) or not isinstance(found.dtype, str):
            raise ValueError("a tensor in it has a name or a type that is no text")
        return found


@dataclass(frozen=True)
class Header:
    """The fixed part of a slot."""

    state: SlotState
    persist: bool
    """Whether the slot is pinned for a checkpoint: the rank must not write to it."""
    generation: int
    step: int
    """Step at whose end the snapshot was taken."""
    rank: int
    data_bytes: int
    """Bytes of the tensor area."""
    meta_offset: int
    """Bytes from the start of the slot to the meta."""
    meta_bytes: int
    """Bytes of the meta."""
    replica: bool = False
    """Whether the slot is pinned for a replica snapshot."""

    @property
    def is_pinned(self) -> bool:
        """Whether the rank must not write to the slot."""
        return self.persist or self.replica


@dataclass(frozen=True)
class Meta:
    """Everything about a snapshot but the tensors' bytes."""

    tree: StateTree
    """Nesting of the state, in which a tensor is its index in ``tensors``."""
    tensors: tuple[TensorEntry, ...]
    """Tensors in the order of their index."""
    coordinates: dict[str, int] = field(default_factory=dict, kw_only=True)
    """Mesh axis -> index of this rank."""

    def encode(self) -> bytes:
        """Return the meta as UTF-8 JSON."""
        tensors = [vars(entry) for entry in self.tensors]
        return json.dumps(
            {"tree": self.tree, "coordinates": self.coordinates, "tensors": tensors},
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Meta":
        """Invert :meth:`encode`. Raises ValueError for anything else."""
        try:
            decoded = json.loads(data)
            tree, coordinates = decoded["tree"], check_coordinates(decoded["coordinates"])
            tensors = tuple(TensorEntry.from_json(entry) for entry in decoded["tensors"])
        except (LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"it is not the meta of a snapshot: {error!r}") from None
        return cls(tree, tensors, coordinates=coordinates)


def check_coordinates(value: object) -> dict[str, int]:
    """Return a value out of JSON if it maps the axes of a mesh to indexes. Raises ValueError for another one."""
    if not isinstance(value, dict) or not all(map(is_count, value.values())):
        raise ValueError("its coordinates are none")
    return value


def align(offset: int) -> int:
    """Return ``offset`` rounded up to a multiple of ALIGNMENT."""
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def allocate(path: Path, nbytes: int) -> None:
    """Create an empty slot of ``nbytes``, mode 0600, with its pages reserved.

    Without reserved pages, a rank that writes to its slot on a full tmpfs would die of SIGBUS. Raises OSError (ENOSPC)
    if there is no room, and leaves nothing behind then.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        header = _HEADER.pack(MAGIC, SlotState.EMPTY, 0, 0, -1, 0, 0, 0, 0, 0)
        os.pwrite(descriptor, header, 0)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


class Slot:
    """A mapped slot. :meth:`close` or the end of a ``with`` block unmaps it; the file stays.

    Raises OSError if the file cannot be mapped, SnapshotError if it is no slot of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < DATA_OFFSET:
                raise SnapshotError(f"{path}: {size} bytes are too few for a snapshot slot")
            self.buffer = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        if self.buffer[:8] != MAGIC:
            raise SnapshotError(f"{path}: not a snapshot slot, or one of another version")

    def __enter__(self) -> "Slot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the slot. Tensors that still view the buffer keep the mapping alive."""
        with contextlib.suppress(BufferError):  # a view still exists: the mapping ends with it
            self.buffer.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the slot."""
        return len(self.buffer)

    @property
    def header(self) -> Header:
        """Header, read anew at each access. Raises SnapshotError if its state is none."""
        fields = _HEADER.unpack_from(self.buffer, 0)
        _, state, persist, generation, step, rank, replica, data_bytes, meta_offset, meta_bytes = fields
        try:
            known = SlotState(state)
        except ValueError:
            raise SnapshotError(f"{self.path}: is damaged: its header has state {state}") from None
        return Header(known, bool(persist), generation, step, rank, data_bytes, meta_offset, meta_bytes, bool(replica))

    def begin(self, *, generation: int, step: int, rank: int) -> None:
        """Mark the slot as being written. Until :meth:`commit` it holds no snapshot, and it is not pinned."""
        _HEADER.pack_into(self.buffer, 0, MAGIC, SlotState.WRITING, 0, generation, step, rank, 0, 0, 0, 0)

    def commit(self, meta: Meta, *, data_bytes: int, persist: bool, replica: bool = False) -> None:
        """Write ``meta`` after the tensors and mark the slot complete, pinned as the flags say.

        Raises SnapshotError if the meta does not fit; the slot then stays in state WRITING.
        """
        encoded = meta.encode()
        meta_offset = align(DATA_OFFSET + data_bytes)
        if len(encoded) > MOST_META_BYTES:
            raise SnapshotError(f"{self.path}: the meta has {len(encoded)} bytes, and {MOST_META_BYTES} are the most")
        if meta_offset + len(encoded) > self.nbytes:
            raise SnapshotError(f"{self.path}: {meta_offset + len(encoded)} bytes do not fit into {self.nbytes}")
        self.buffer[meta_offset : meta_offset + len(encoded)] = encoded
        old = self.header
        _HEADER.pack_into(
            self.buffer, 0, MAGIC, SlotState.WRITING, int(persist), old.generation, old.step, old.rank,
            int(replica), data_bytes, meta_offset, len(encoded),
        )  # fmt: skip
        # The state comes last, in a store of its own: a reader that sees COMPLETE finds everything else in place.
        _STATE.pack_into(self.buffer, _STATE_OFFSET, SlotState.COMPLETE)

    def set_persist(self, persist: bool) -> None:
        """Pin the slot for a checkpoint (True), or release it from that (False)."""
        _STATE.pack_into(self.buffer, _PERSIST_OFFSET, int(persist))

    def release_replica(self) -> None:
        """Release the slot from a replica snapshot."""
        _STATE.pack_into(self.buffer, _REPLICA_OFFSET, 0)

    def invalidate(self) -> None:
        """Mark the slot as empty and release it."""
        _HEADER.pack_into(self.buffer, 0, MAGIC, SlotState.EMPTY, 0, 0, -1, 0, 0, 0, 0, 0)

    def meta(self) -> Meta:
        """Return the meta of a complete snapshot, whose tensors are all inside of the slot.

        Raises SnapshotError if it is not complete, or damaged.
        """
        header = self.header
        if header.state is not SlotState.COMPLETE:
            raise SnapshotError(f"{self.path}: holds no complete snapshot")
        end = header.meta_offset + header.meta_bytes
        if header.meta_bytes > MOST_META_BYTES or end > self.nbytes:
            raise SnapshotError(f"{self.path}: is damaged: its meta has {header.meta_bytes} bytes up to byte {end}")
        try:
            meta = Meta.decode(self.buffer[header.meta_offset : end])
        except ValueError as error:
            raise SnapshotError(f"{self.path}: is damaged: {error}") from None
        if not all(entry.offset + entry.nbytes <= self.nbytes for entry in meta.tensors):
            raise SnapshotError(f"{self.path}: is damaged: a tensor is outside of it")
        return meta

    def tensor_bytes(self, entry: TensorEntry) -> memoryview:
        """Return a view of one tensor's bytes. Release it before :meth:`close`."""
        return memoryview(self.buffer)[entry.offset : entry.offset + entry.nbytes]
