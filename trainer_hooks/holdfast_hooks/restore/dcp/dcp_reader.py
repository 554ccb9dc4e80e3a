"""Reads a checkpoint for the planners of torch.distributed.checkpoint."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.format.shard_reader import ShardReader
from holdfast_hooks.restore.saved_state import Chunk, SavedState, SavedTensor, by_rank
from holdfast_hooks.snapshots.slot_layout import as_tensor
from holdfast_hooks.state.encoding import TENSOR_KINDS, decode_state
from holdfast_hooks.state.tree import kind_of, leaves, tensors_of


class SavedStateReader(StorageReader):
    """Serves the tensors and other values of a saved state under the keys that it is given."""

    def __init__(self, directory: Path, tensors: Mapping[str, SavedTensor]) -> None:
        super().__init__()
        self.directory = directory
        self.tensors = tensors
        self.values: Mapping[str, Any] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Describe the values and tensors."""
        described: dict[str, STORAGE_TYPES] = {key: BytesStorageMetadata() for key in self.values}
        # A tensor whose parts are missing is left out: a planner would take it for one without elements
        # and load nothing into it.
        complete = {key: tensor for key, tensor in self.tensors.items() if tensor.chunks or 0 in tensor.global_shape}
        described |= {key: _describe(tensor) for key, tensor in complete.items()}
        return Metadata(described)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep nothing: every rank reads for itself."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the items of the plan, each stored part once.

        Raises CheckpointUnreadable if a byte is wrong, ConfigurationError if the saved parts do not make up a whole.
        """
        wanted: dict[tuple[int, str, tuple[int, ...]], list[ReadItem]] = {}
        chunks: list[Chunk] = []
        checked: set[str] = set()
        for item in plan.items:
            key = item.storage_index.fqn
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _torch_bytes(self.values[key]))
                continue
            if key not in checked:
                self.tensors[key].check()
                checked.add(key)
            chunk = self._chunk(item.storage_index)
            items = wanted.setdefault(_identity(chunk), [])
            if not items:
                chunks.append(chunk)
            items.append(item)
        for rank, in_shard in by_rank(iter(chunks)).items():
            with ShardReader(shard_path(self.directory, rank)) as reader:
                for chunk in in_shard:
                    _deliver(_read(reader, chunk), wanted[_identity(chunk)], planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - torch's interface
        """Accept any path."""
        return True

    def _chunk(self, index: MetadataIndex) -> Chunk:
        assert index.offset is not None
        return self.tensors[index.fqn].chunks[tuple(index.offset)]


class CheckpointReader(SavedStateReader):
    """Reads one step's checkpoint in ``directory`` for ``torch.distributed.checkpoint.load``, in any layout.

    The keys are those that ``load`` makes of the state given to :func:`holdfast_hooks.attach`. Values that every rank
    saved for itself come from the rank with this rank's number modulo the number of writers. Raises
    CheckpointUnreadable with file and tensor.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(Path(directory), {})

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, from another directory if one is given."""
        if checkpoint_id is not None:
            self.directory = Path(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the manifest and all indexes."""
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        saved = SavedState.open(self.directory, rank)
        tensors: dict[str, SavedTensor] = {}
        values: dict[str, Any] = {}
        for tree in saved.trees:
            for path, node in leaves(tree):
                key = ".".join(map(str, path))
                if kind_of(node) in TENSOR_KINDS:
                    (name,) = tensors_of(node)
                    tensors.setdefault(key, saved.tensors[name])
                elif key not in values and not any(tensors_of(node)):
                    values[key] = decode_state(node, _no_tensor)
        self.tensors, self.values = tensors, values
        return super().read_metadata()


def _describe(tensor: SavedTensor) -> TensorStorageMetadata:
    chunks = [
        ChunkStorageMetadata(torch.Size(offset), torch.Size(chunk.stored.entry.shape))
        for offset, chunk in tensor.chunks.items()
    ]
    properties = TensorProperties(dtype=getattr(torch, tensor.dtype))
    return TensorStorageMetadata(properties, torch.Size(tensor.global_shape), chunks)


def _identity(chunk: Chunk) -> tuple[int, str, tuple[int, ...]]:
    entry = chunk.stored.entry
    return chunk.rank, entry.name, entry.global_offset


def _read(reader: ShardReader, chunk: Chunk) -> torch.Tensor:
    buffer = bytearray(chunk.stored.entry.nbytes)
    reader.read(chunk.stored, memoryview(buffer))
    return as_tensor(buffer, chunk.stored.entry, 0)


def _deliver(part: torch.Tensor, items: list[ReadItem], planner: LoadPlanner) -> None:
    """Copy the regions of a part to the targets that the planner names."""
    for item in items:
        region = part
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            region = region.narrow(dim, start, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(region)
        planner.commit_tensor(item, target)


def _torch_bytes(value: object) -> io.BytesIO:
    """Return a value in the only form that planners accept. These bytes are never stored."""
    packed = io.BytesIO()
    torch.save(value, packed)
    packed.seek(0)
    return packed


def _no_tensor(kind: str, name: str) -> NoReturn:
    raise TypeError(f"{name}: a {kind} cannot be handed over in bytes")
