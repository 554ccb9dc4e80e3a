"""Reads tensors of a shard, also those that are stored as differences, and lets no wrong byte through."""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from holdfast_checkpoint.codec.registry import PayloadError, codec_named
from holdfast_checkpoint.errors import CheckpointUnreadable
from holdfast_checkpoint.format.base_shard import BaseShard
from holdfast_checkpoint.format.parallel_read import TakeTensor, read_tensors
from holdfast_checkpoint.format.shard_file import ShardFile
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor, load_index_file

__all__ = ["ShardReader", "TakeTensor", "verify_shard"]


class ShardReader:
    """Reads any tensor of one shard without the others. A context manager.

    A tensor that is stored as a difference is read together with its earlier state, from the shard that this one
    builds on. Memory: a few MiB, whatever the size of the tensors.
    """

    def __init__(self, path: Path, index: ShardIndex | None = None) -> None:
        """Open a shard. Without ``index``, the index next to it is read if a tensor is a difference."""
        self.path = path
        self._index = index
        self._file = ShardFile(path)
        self._base: BaseShard | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._base is not None:
            self._base.close()

    def chunks(self, tensor: StoredTensor, into: memoryview | None = None) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts.

        The parts are in ``into``, which has the tensor's size; without it the next part overwrites the one before.
        Raises CheckpointUnreadable if anything is damaged, here or in the earlier state. That may be after the last
        part: do not use the parts before.
        """
        if not self._is_difference(tensor):
            yield from self._file.parts(tensor, into)
            return
        base = self._open_base()
        if not base.holds(tensor.entry):
            raise self._file.damage(tensor, f"is a difference to step {base.base.step}, which lacks it")
        with base.earlier(tensor.entry) as earlier:
            try:
                yield from self._file.parts(tensor, into, earlier)
            except CheckpointUnreadable:
                # Damage of the earlier state shows here as well. finish() raises for the base if the damage is there,
                # so that the message names the right file.
                earlier.finish()
                raise

    def read(self, tensor: StoredTensor, into: memoryview) -> None:
        """Read a tensor into memory of its size. Raises CheckpointUnreadable."""
        for _ in self.chunks(tensor, into):
            pass

    def read_all(self, index: ShardIndex, place: TakeTensor) -> None:
        """Read the whole shard and pass each of its tensors to ``place``, which takes all parts.

        It uses several cores: ``place`` runs in forked processes. Raises CheckpointUnreadable if any byte is wrong,
        also one that belongs to no tensor.
        """
        self._file.check_extent(index)
        read_tensors(self.path, lambda: ShardReader(self.path, index), index, place)

    def verify(self, index: ShardIndex) -> None:
        """Read the whole shard and keep nothing. Raises as :meth:`read_all` does.

        It uses one core, because ranks may be training.
        """
        self._index = index
        self._file.check_extent(index)
        for tensor in index.tensors:
            if tensor.is_stored:
                for _ in self.chunks(tensor):
                    pass

    def _is_difference(self, tensor: StoredTensor) -> bool:
        try:
            return codec_named(tensor.codec).needs_previous(tensor.descriptor)
        except PayloadError as error:
            raise self._file.damage(tensor, str(error)) from error

    def _open_base(self) -> BaseShard:
        if self._base is None:
            if self._index is None:
                self._index = load_index_file(self.path.with_suffix(".json"))
            if self._index.base is None:
                raise CheckpointUnreadable(f"{self.path} holds differences, but its index names no base")
            self._base = BaseShard(self.path.parent.parent, self._index.base, self._index.rank)
        return self._base


def verify_shard(path: Path, index: ShardIndex) -> None:
    """Read the whole shard. Raises CheckpointUnreadable if it does not match ``index``."""
    with ShardReader(path) as reader:
        reader.verify(index)
