"""The index of a shard: which tensors a rank's part of a checkpoint holds, and where. See docs/checkpoint-format.md.

The names of all files of a checkpoint are defined here, too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.files import read_regular
from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable, read_errors
from holdfast_checkpoint.codec.codec_registry import Descriptor
from holdfast_checkpoint.format.sealed_json import SealError, digest_of, seal, unseal_format
from holdfast_proto.limits import is_count
from holdfast_proto.snapshot import StateTree, TensorEntry, check_coordinates

FORMAT = 5
_MOST_BYTES = 256 << 20
"""A tensor takes some 500 bytes, and its place in the tree some 50."""

INDEX_PATTERN = "rank-*.json"
"""Pattern of the names of all indexes in a checkpoint's directory: see :func:`index_path`."""

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a rank's state, and where its shard holds it.

    All fields but ``entry`` have a meaning only if :attr:`is_stored`.
    """

    entry: TensorEntry
    """Name, type and shape of the tensor; its ``offset`` is the one in the slot."""
    stored_offset: int = 0
    """Bytes from the start of the shard file to the payload."""
    stored_bytes: int = 0
    """Bytes of the payload in the shard file."""
    codec: str = ""
    """Name of a codec; empty: the tensor is in the shard of rank ``entry.writer``, which holds the same part."""
    descriptor: Descriptor = None
    """Descriptor of the payload, for its codec."""
    digest: str = ""
    """Digest of the raw bytes. With it, a reader trusts no decoder."""
    stored_digest: str = ""
    """Digest of the payload. With it, a shard is checked without decoding it."""

    @property
    def is_stored(self) -> bool:
        """Whether this shard holds the tensor."""
        return bool(self.codec)


@dataclass(frozen=True, kw_only=True)
class Base:
    """The shard of the same rank in an earlier checkpoint, to which tensors are stored as differences.

    It has no base itself, so that two shards are enough to read any tensor.
    """

    step: int
    """Step of the earlier checkpoint."""
    index_digest: str
    """Digest of the index of its shard. The step alone would not do: the shard may have been written again."""


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """Everything about one shard but its bytes."""

    run: str
    """Name of the run."""
    step: int
    """Step at whose end the snapshot was taken."""
    rank: int
    world_size: int
    generation: int
    """Generation in which the snapshot was taken."""
    slot_bytes: int
    """Bytes of the slot that held the snapshot."""
    data_bytes: int
    """Bytes of the tensor area in that slot."""
    coordinates: dict[str, int]
    """Mesh axis -> index of this rank."""
    tree: StateTree
    """Nesting of the state, in which tensors are numbers."""
    tensors: tuple[StoredTensor, ...]
    """Tensors in the order of their numbers in ``tree``. The stored ones are in the shard in this order."""
    shard_bytes: int
    """Bytes of the shard file: the sum of its payloads, as there is nothing between them."""
    base: Base | None = None
    """Shard that this one builds on; None: it can be read alone."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of the tensors in the shard before compression."""
        return sum(tensor.entry.nbytes for tensor in self.tensors if tensor.is_stored)

    @property
    def digest(self) -> str:
        """Digest of the index file."""
        return digest_of(self.encode())

    def encode(self) -> bytes:
        """Return the index file. The same snapshot in the same codecs gives the same bytes, on any node."""
        # dataclasses.asdict() would copy the tree, and takes several times as long as all the rest.
        tensors = [{**vars(tensor), "entry": vars(tensor.entry)} for tensor in self.tensors]
        base = self.base and vars(self.base)
        return seal({"format": FORMAT, **vars(self), "tensors": tensors, "base": base})

    @classmethod
    def decode(cls, data: bytes) -> "ShardIndex":
        """Invert :meth:`encode`. Raises SealError if a byte differs, ValueError for another format or odd values."""
        body = unseal_format(data, FORMAT)
        try:
            tensors = tuple(
                StoredTensor(**{**tensor, "entry": TensorEntry.from_json(tensor["entry"])})
                for tensor in body["tensors"]
            )
            base = None if body["base"] is None else Base(**body["base"])
            index = cls(**{**body, "tensors": tensors, "base": base})
        except (LookupError, TypeError) as error:
            raise ValueError(f"it has other fields: {error}") from None
        index._check()
        return index

    def _check(self) -> None:
        """Raise ValueError for values that no writer has written: the digest proves no more than that they are whole.

        The codecs check their descriptors.
        """
        check_coordinates(self.coordinates)
        sizes = (self.slot_bytes, self.data_bytes, self.shard_bytes, *(each.stored_offset for each in self.tensors))
        places = (self.step, self.rank, self.world_size, self.generation, 0 if self.base is None else self.base.step)
        if not all(map(is_count, (*sizes, *places, *(each.stored_bytes for each in self.tensors)))):
            raise ValueError("a number of it is none")
        texts = [text for each in self.tensors for text in (each.codec, each.digest, each.stored_digest)]
        texts += [self.run, "" if self.base is None else self.base.index_digest]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a text of it is none")
        if not all(isinstance(each.descriptor, dict | None) for each in self.tensors):
            raise ValueError("a descriptor of it is none")


def step_directory(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint of ``step`` in a run's directory of checkpoints."""
    return checkpoints / f"step-{step:08}"


def step_of(folder: str) -> int | None:
    """Return the step whose checkpoint a folder of this name holds, or None for any other name."""
    match = _STEP_FOLDER.fullmatch(folder)
    return None if match is None else int(match[1])


def shard_path(directory: Path, rank: int) -> Path:
    """Return the path of the shard of ``rank`` in a checkpoint's directory."""
    return directory / f"rank-{rank:05}.shard"


def index_path(directory: Path, rank: int) -> Path:
    """Return the path of the index of ``rank``'s shard in a checkpoint's directory."""
    return directory / f"rank-{rank:05}.json"


def load_index(directory: Path, rank: int) -> ShardIndex:
    """Read the index of ``rank``.

    Raises CheckpointUnreadable if it is damaged or of another rank, CheckpointUnavailable if it cannot be read.
    """
    path = index_path(directory, rank)
    index = load_index_file(path)
    if index.rank != rank:
        raise CheckpointUnreadable(f"{path} is the index of rank {index.rank}")
    return index


def load_index_file(path: Path) -> ShardIndex:
    """Read an index. Raises CheckpointUnreadable if it is damaged, CheckpointUnavailable if it cannot be read."""
    with read_errors(path):
        data = read_regular(path, _MOST_BYTES)
    try:
        return ShardIndex.decode(data)
    except SealError as error:
        raise CheckpointUnreadable(f"{path} {error}") from error
    except ValueError as error:
        raise CheckpointUnreadable(f"{path} is not a shard index of this version: {error}") from error


def slot_bytes_needed(index: ShardIndex) -> int:
    """Return the bytes of a slot for this shard: as many as it came from, so that the rank can take snapshots in it."""
    return index.slot_bytes
