"""The index of a shard: what a rank's part of a checkpoint holds, and where. See docs/checkpoint-format.md."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_checkpoint.errors import CheckpointUnreadable, read_errors
from holdfast_checkpoint.format.sealed_json import SealError, digest_of, seal, unseal_format
from holdfast_proto.snapshot import TensorEntry

FORMAT = 5

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a rank's state, and where its shard holds it.

    The fields but ``entry`` mean nothing unless it :attr:`is_stored`.
    """

    entry: TensorEntry
    """Its ``offset`` is that in the slot."""
    stored_offset: int = 0
    """From the start of the shard file, bytes."""
    stored_bytes: int = 0
    codec: str = ""
    """Name of a codec; empty: not in this shard but in that of rank ``entry.writer``, which holds the same tensor."""
    descriptor: Any = None
    """What the codec has to know, JSON."""
    digest: str = ""
    """Of the raw bytes."""
    stored_digest: str = ""
    """Of the bytes in the shard."""

    @property
    def is_stored(self) -> bool:
        """Whether this shard holds it."""
        return bool(self.codec)


@dataclass(frozen=True, kw_only=True)
class Base:
    """The shard of the same rank in an earlier checkpoint, to which tensors are stored as differences.

    It has no base itself, so that two shards are enough to read any tensor.
    """

    step: int
    index_digest: str


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """Everything about one shard but its bytes."""

    run: str
    step: int
    rank: int
    world_size: int
    generation: int
    """In which the snapshot was taken."""
    slot_bytes: int
    """Size of the slot that it came from."""
    data_bytes: int
    """Of the slot's tensor area."""
    coordinates: dict[str, int]
    """Mesh axis -> index of this rank."""
    tree: Any
    tensors: tuple[StoredTensor, ...]
    """As ``tree`` numbers them. Those that are stored lie in the shard in this order."""
    shard_bytes: int
    """Of the shard file: of its tensors, between which there is nothing."""
    base: Base | None = None
    """None: the shard can be read alone."""

    @property
    def raw_bytes(self) -> int:
        """Size of the tensors in the shard before compression."""
        return sum(tensor.entry.nbytes for tensor in self.tensors if tensor.is_stored)

    @property
    def digest(self) -> str:
        """Digest of the index file."""
        return digest_of(self.encode())

    def encode(self) -> bytes:
        """Return the index file. The same snapshot in the same codecs gives the same bytes, whoever writes it."""
        # dataclasses.asdict() would copy the tree, and takes several times as long as all the rest.
        tensors = [{**vars(tensor), "entry": vars(tensor.entry)} for tensor in self.tensors]
        base = self.base and vars(self.base)
        return seal({"format": FORMAT, **vars(self), "tensors": tensors, "base": base})

    @classmethod
    def decode(cls, data: bytes) -> "ShardIndex":
        """Invert :meth:`encode`. Raises SealError if a byte differs, ValueError for another format."""
        body = unseal_format(data, FORMAT)
        tensors = tuple(
            StoredTensor(**{**tensor, "entry": TensorEntry.from_json(tensor["entry"])}) for tensor in body["tensors"]
        )
        base = body["base"] and Base(**body["base"])
        return cls(**{**body, "tensors": tensors, "base": base})


def step_directory(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` lies in a run's directory of checkpoints."""
    return checkpoints / f"step-{step:08}"


def step_of(folder: str) -> int | None:
    """Return the step whose checkpoint a folder of this name holds, or None for any other name."""
    match = _STEP_FOLDER.fullmatch(folder)
    return None if match is None else int(match[1])


def shard_path(directory: Path, rank: int) -> Path:
    """Where the shard of ``rank`` lies in a checkpoint's directory."""
    return directory / f"rank-{rank:05}.shard"


def index_path(directory: Path, rank: int) -> Path:
    """Where the index of the shard of ``rank`` lies in a checkpoint's directory."""
    return directory / f"rank-{rank:05}.json"


def load_index(directory: Path, rank: int) -> ShardIndex:
    """Read the index of ``rank``. Raises CheckpointUnreadable if it is not whole or not that rank's."""
    path = index_path(directory, rank)
    index = load_index_file(path)
    if index.rank != rank:
        raise CheckpointUnreadable(f"{path} is the index of rank {index.rank}")
    return index


def load_index_file(path: Path) -> ShardIndex:
    """Read an index. Raises CheckpointUnreadable if it is not whole."""
    with read_errors(path):
        data = path.read_bytes()
    try:
        return ShardIndex.decode(data)
    except SealError as error:
        raise CheckpointUnreadable(f"{path} {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointUnreadable(f"{path} is not a shard index of this version: {error}") from error


def slot_bytes_needed(index: ShardIndex) -> int:
    """Return the size of a slot for this shard: that of the slot it came from, so that the rank can go on with it."""
    return index.slot_bytes
