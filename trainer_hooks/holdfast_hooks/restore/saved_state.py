"""A checkpoint as one state, and not as the shards of the ranks that wrote it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.manifest import load_committed_indexes
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor, index_path
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.state.tree import check_tree, with_names
from holdfast_proto.snapshot import StateTree

_FIX = (
    "give values that differ between ranks different names: use holdfast_hooks.by_name() for an optimizer, and the"
    " names of the whole model for pipeline stages"
)


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor in the shard of ``rank``."""

    rank: int
    stored: StoredTensor


@dataclass
class SavedTensor:
    """A whole tensor and its saved parts. It collects them while the indexes are read."""

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    is_spread: bool
    """Whether it was spread over ranks. If not, this is the preferred rank's tensor of this name."""
    chunks: dict[tuple[int, ...], Chunk] = field(default_factory=dict)
    """Parts by their offset in the whole, without those that have no elements."""
    conflict: str = ""
    """Reason why the parts do not fit together; empty if none is known."""
    differs: bool = False
    """Whether several ranks have a tensor of their own under this name, with different contents."""

    def __str__(self) -> str:
        return f"{self.dtype} {self.global_shape}"

    def check(self, *, must_agree: bool = False) -> None:
        """Raise ConfigurationError unless the parts make up the whole.

        ``must_agree``: also raise it if ranks saved different tensors of their own under this name.
        """
        conflict = self.conflict or (
            "ranks saved different tensors under this name" if must_agree and self.differs else ""
        )
        if conflict:
            raise ConfigurationError(f"cannot load {self.name}: {conflict}; {_FIX}")
        held = sum(math.prod(chunk.stored.entry.shape) for chunk in self.chunks.values())
        if held != math.prod(self.global_shape):
            raise ConfigurationError(
                f"cannot load {self.name}: the checkpoint holds {held} of its {math.prod(self.global_shape)} elements;"
                " save it in a layout that spreads it evenly"
            )


@dataclass(frozen=True)
class SavedState:
    """A committed checkpoint, as one rank of another world reads it."""

    directory: Path
    step: int
    tensors: Mapping[str, SavedTensor]
    trees: Sequence[StateTree]
    """Trees of the ranks that wrote it, the preferred rank's first. They name tensors and do not number them."""

    @classmethod
    def open(cls, directory: Path, rank: int) -> "SavedState":
        """Read the indexes of the checkpoint in ``directory``, for ``rank`` of this world. Raises CheckpointUnreadable.

        Values that every rank has for itself come from the preferred rank: ``rank`` modulo the number of writers. If
        it lacks one, that comes from the lowest rank that has it.
        """
        manifest, indexes = load_committed_indexes(directory)
        preferred = indexes[rank % manifest.world_size]
        ordered = [preferred, *(index for index in indexes if index is not preferred)]
        tensors: dict[str, SavedTensor] = {}
        for index in ordered:
            for stored in index.tensors:
                if stored.is_stored:
                    _add(tensors, Chunk(index.rank, stored))
        return cls(directory, manifest.step, tensors, [_named_tree(directory, index) for index in ordered])


def _named_tree(directory: Path, index: ShardIndex) -> StateTree:
    names = [stored.entry.name for stored in index.tensors]
    try:
        check_tree(index.tree, names)
    except ValueError as error:
        raise CheckpointUnreadable(f"{index_path(directory, index.rank)}: is damaged: {error}") from None
    return with_names(index.tree, names)


def _add(tensors: dict[str, SavedTensor], chunk: Chunk) -> None:
    entry = chunk.stored.entry
    is_spread = entry.writer is not None
    known = tensors.get(entry.name)
    if known is None:
        known = tensors[entry.name] = SavedTensor(entry.name, entry.dtype, entry.global_shape, is_spread)
    elif not (is_spread or known.is_spread):
        (first,) = known.chunks.values() or (chunk,)
        known.differs |= (first.stored.entry.shape, first.stored.digest) != (entry.shape, chunk.stored.digest)
        return
    elif (entry.dtype, entry.global_shape, is_spread) != (known.dtype, known.global_shape, known.is_spread):
        known.conflict = f"rank {chunk.rank} saved another tensor under this name than ranks before it"
        return
    if not math.prod(entry.shape):
        return
    earlier = known.chunks.setdefault(entry.global_offset, chunk)
    # Data-parallel replicas without a mesh axis of their own repeat a mesh: they save equal parts at one offset.
    if (earlier.stored.entry.shape, earlier.stored.digest) != (entry.shape, chunk.stored.digest):
        known.conflict = f"ranks {earlier.rank} and {chunk.rank} saved different parts of it at {entry.global_offset}"


def by_rank(chunks: Iterator[Chunk]) -> dict[int, list[Chunk]]:
    """Return chunks by the rank of their shard, in the order in which they are in the file."""
    found: dict[int, list[Chunk]] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.rank, chunk.stored.stored_offset)):
        found.setdefault(chunk.rank, []).append(chunk)
    return found
