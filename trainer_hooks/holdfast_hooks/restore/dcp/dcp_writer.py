"""Writes the plans of torch.distributed.checkpoint as a checkpoint of ours."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from holdfast_checkpoint.checkpoint_errors import CheckpointError, write_errors
from holdfast_checkpoint.format.durable import NewFile, flush_directory, make_directory, write_file
from holdfast_checkpoint.format.manifest import MANIFEST, describe
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor, index_path, load_index, shard_path
from holdfast_checkpoint.format.shard_writer import ShardWriter, read_back
from holdfast_hooks.snapshots.slot_layout import SlotLayout, lay_out
from holdfast_hooks.state.encoding import encode_state
from holdfast_proto.snapshot import StateTree, TensorEntry

RUN = "dcp"
"""Name of the run in the manifest. A run of Holdfast with another name does not take it for its own."""


class CheckpointWriter(StorageWriter):
    """Writes one checkpoint into ``directory``, for ``torch.distributed.checkpoint.save``.

    Every rank writes its shard. Last, the coordinator writes the manifest with ``step``, by a rename: until then there
    is no checkpoint. Values that are not tensors must be JSON or bytes, as in a snapshot. Raises CheckpointError if it
    cannot be written, TypeError for a value that cannot be encoded.
    """

    def __init__(self, directory: str | os.PathLike[str], *, step: int = 0) -> None:
        super().__init__()
        self._directory = Path(directory)
        self._step = step

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save, into another directory if one is given."""
        if checkpoint_id is not None:
            self._directory = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Remove the manifest of a checkpoint that was in the directory before, if any."""
        with write_errors(self._directory):
            make_directory(self._directory)
            if is_coordinator and (self._directory / MANIFEST).exists():
                (self._directory / MANIFEST).unlink()
                flush_directory(self._directory)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give every rank its number and the number of ranks."""
        return [dataclasses.replace(plan, storage_data=(number, len(plans))) for number, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shard and its index."""
        rank, world_size = plan.storage_data
        items = {_path(item, planner): item for item in plan.items}
        if len(items) < len(plan.items):
            raise CheckpointError("a rank has several shards of one tensor: use DTensor instead of ShardedTensor")
        image = encode_state(_nested({path: _value(item, planner) for path, item in items.items()}))
        layout = lay_out(image, None)
        placements = {"/".join(map(str, path)): item for path, item in items.items()}
        with write_errors(self._directory), NewFile(shard_path(self._directory, rank)) as file:
            writer = ShardWriter(file)
            stored = tuple(
                writer.store(_placed(entry, placements[entry.name], rank), _raw(part.local))
                for entry, part in zip(layout.entries, image.parts, strict=True)
            )
            file.flush()
            index = self._index(rank, world_size, image.tree, layout, stored=stored, writer=writer)
            read_back(file, index)
            file.publish()
            write_file(index_path(self._directory, rank), index.encode())
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002 - torch's interface
        """Commit the checkpoint, now that every rank has written its shard."""
        indexes = [load_index(self._directory, rank) for rank in range(len(results))]
        with write_errors(self._directory):
            write_file(self._directory / MANIFEST, describe(indexes).encode())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - torch's interface
        """Accept any path."""
        return True

    def _index(
        self,
        rank: int,
        world_size: int,
        tree: StateTree,
        layout: SlotLayout,
        *,
        stored: tuple[StoredTensor, ...],
        writer: ShardWriter,
    ) -> ShardIndex:
        return ShardIndex(
            run=RUN,
            step=self._step,
            rank=rank,
            world_size=world_size,
            generation=0,
            slot_bytes=0,
            data_bytes=layout.data_bytes,
            coordinates={},
            tree=tree,
            tensors=stored,
            shard_bytes=writer.stored_bytes,
        )


StatePath = tuple[str | int, ...]


def _path(item: WriteItem, planner: SavePlanner) -> StatePath:
    mappings: dict[str, StatePath] = getattr(planner, "mappings", {})
    return mappings.get(item.index.fqn, (item.index.fqn,))


def _value(item: WriteItem, planner: SavePlanner) -> object:
    if item.type is not WriteItemType.BYTE_IO:
        data = planner.resolve_data(item)
        assert isinstance(data, torch.Tensor)
        return data.detach()
    # resolve_data() would pickle it.
    if not isinstance(planner, DefaultSavePlanner):
        raise TypeError(f"{item.index.fqn}: save it with DefaultSavePlanner; {type(planner).__name__} only pickles")
    return planner.lookup_object(item.index)


def _nested(values: dict[StatePath, Any]) -> dict[Any, Any]:
    """Return values in mappings that nest as their paths do."""
    root: dict[Any, Any] = {}
    for path, value in values.items():
        container = root
        for key in path[:-1]:
            container = container.setdefault(key, {})
        container[path[-1]] = value
    return root


def _placed(entry: TensorEntry, item: WriteItem, rank: int) -> TensorEntry:
    """Return the entry with its part's place in the whole, because the planner splits tensors by its own rules."""
    if item.type is not WriteItemType.SHARD or item.tensor_data is None:
        return entry
    return dataclasses.replace(
        entry,
        global_shape=tuple(item.tensor_data.size),
        global_offset=tuple(item.tensor_data.chunk.offsets),
        writer=rank,
    )


def _raw(tensor: torch.Tensor) -> memoryview:
    buffer = bytearray(tensor.numel() * tensor.element_size())
    if buffer:
        flat = torch.frombuffer(buffer, dtype=torch.uint8).view(tensor.dtype)
        flat.view(tensor.shape).copy_(tensor)
    return memoryview(buffer)
