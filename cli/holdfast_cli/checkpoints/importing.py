"""Makes a checkpoint that a run can start from out of a file of tensors."""

import json
import pickle
import random
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from holdfast_checkpoint.checkpoint_errors import write_errors
from holdfast_checkpoint.format.durable import NewFile, make_directory, write_file
from holdfast_checkpoint.format.history import folder_name
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, describe
from holdfast_checkpoint.format.shard_index import ShardIndex, index_path, load_index, shard_path, step_directory
from holdfast_checkpoint.format.shard_writer import ShardWriter, read_back
from holdfast_checkpoint.guard.damage import DamagedFileError
from holdfast_checkpoint.guard.paced_reading import Pace, PacedFile
from holdfast_checkpoint.guard.torch_archive import MAGIC, TorchArchive
from holdfast_checkpoint.store.histories import FolderPlace, Histories, StorePlace
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints, manifest_name
from holdfast_cli.checkpoints.exporting import MODEL, TREE
from holdfast_cli.checkpoints.tensor_file import TensorFileError
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_hooks.snapshots.slot_layout import lay_out
from holdfast_hooks.state import random_states
from holdfast_hooks.state.encoding import Image, decode_state, encode_state
from holdfast_proto.snapshot import DATA_OFFSET, Meta, align

_DAMAGE = (
    RuntimeError, pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    ArithmeticError, struct.error,
)  # fmt: skip
"""What torch raises for a damaged file."""


def import_checkpoint(source: Path, checkpoints: Path, *, step: int, run: str) -> Manifest:
    """Commit what ``source`` holds as the checkpoint of ``step`` of ``run``, as one rank would have saved it.

    A file of a whole state gives that state; a file of tensors alone is taken for the model, and the random states
    are those of seed 0. The file is mapped, never held in memory. Raises CommandError and CheckpointError.
    """
    histories = Histories(FolderPlace(checkpoints), lambda number: checkpoints / folder_name(number))
    histories.refresh()
    directory = step_directory(histories.of_step(step), step)
    if directory.exists():
        raise CommandError(f"{directory} exists: choose another --step or remove it")
    state = _read(source)
    if random_states.KEY not in state:
        random.seed(0)
        torch.manual_seed(0)
        state = {**state, random_states.KEY: random_states.capture()}
    try:
        image = encode_state(state)
    except TypeError as error:
        raise CommandError(f"{source}: {error}") from None
    try:
        with write_errors(directory):
            make_directory(directory)
            manifest = describe([_write_shard(image, directory, step=step, run=run)])
            write_file(directory / MANIFEST, manifest.encode())
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return manifest


def import_into_store(source: Path, remote: ObjectCheckpoints, *, step: int, run: str) -> Manifest:
    """Do as :func:`import_checkpoint`, over a temporary folder. After an error, make the same call again."""
    histories = Histories(StorePlace(remote.store), remote.of_history)
    histories.refresh()
    remote = histories.of_step(step)
    name = manifest_name(step)
    if name in remote.store.listing():
        raise CommandError(f"{remote.store.url}/{name} exists: choose another --step or remove it")
    with tempfile.TemporaryDirectory(prefix="holdfast-import-") as temporary:
        manifest = import_checkpoint(source, Path(temporary), step=step, run=run)
        directory = step_directory(Path(temporary), step)
        remote.put_shard(directory, 0)
        remote.commit(manifest, [load_index(directory, 0)])
    return manifest


def _read(source: Path) -> Mapping[str, Any]:
    """Return the state in a file, its tensors mapped."""
    readers = {".safetensors": _read_safetensors, ".pt": _read_pt}
    if source.suffix not in readers:
        if source.is_dir():
            fix = "start the trainer with --model.init_from and this folder, if it is a model of Hugging Face"
            raise SettingsError(f"{source}: is a folder: name a file, or {fix}")
        raise SettingsError(f"{source}: give it the ending {' or '.join(readers)}, whichever format it has")
    try:
        return readers[source.suffix](source)
    except OSError as error:
        raise CommandError(f"{source}: {error.strerror or error}: name a file that you can read") from None
    except TensorFileError as error:
        raise CommandError(f"{source} {error}: export it again") from None


def _read_safetensors(source: Path) -> Mapping[str, Any]:
    source.open("rb").close()  # safetensors would say only that the file cannot be opened, and not why
    try:
        with safe_open(source, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise TensorFileError(f"is not a safetensors file: {error}") from error
    except (MemoryError, RuntimeError) as error:
        fix = "set vm.overcommit_memory to 1, so that Linux maps files larger than memory and swap"
        raise CommandError(f"{source} cannot be mapped ({error}): {fix}") from None
    if TREE not in metadata:
        return {MODEL: tensors}

    def tensor(kind: str, name: str) -> object:
        return tensors[name].numpy() if kind == "array" else tensors[name]

    try:
        state: Mapping[str, Any] = decode_state(json.loads(metadata[TREE]), tensor)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TensorFileError(f"holds other tensors than its metadata says ({error!r})") from error
    return state


def _read_pt(source: Path) -> Mapping[str, Any]:
    _check_archive(source)
    try:
        state = torch.load(source, map_location="cpu", mmap=True, weights_only=True)
    except _DAMAGE as error:
        first = next(iter(str(error).splitlines()), "it ends too early")
        raise TensorFileError(f"cannot be loaded with weights_only=True ({first})") from error
    if not isinstance(state, Mapping):
        raise TensorFileError("holds no mapping of names")
    is_model = any(isinstance(value, torch.Tensor) for value in state.values())
    return {MODEL: state} if is_model else state


def _check_archive(source: Path) -> None:
    """Raise TensorFileError for an archive that would take more memory than its size: torch does not look at that."""
    with PacedFile(source, Pace()) as file:
        if file.read(0, min(file.size, len(MAGIC))) != MAGIC:
            return  # torch says what it is instead, and maps no other file
        try:
            archive = TorchArchive(file)
        except DamagedFileError as error:
            raise TensorFileError(f"cannot be loaded: {error}") from None
    if not archive.is_plain or archive.root is None:
        raise TensorFileError("cannot be loaded: it is compressed, or no archive of torch")


def _write_shard(image: Image, directory: Path, *, step: int, run: str) -> ShardIndex:
    layout = lay_out(image, None)
    meta = Meta(image.tree, layout.entries)
    with NewFile(shard_path(directory, 0)) as file:
        writer = ShardWriter(file)
        tensors = tuple(
            writer.store(entry, _raw(part.local)) for entry, part in zip(layout.entries, image.parts, strict=True)
        )
        file.flush()
        index = ShardIndex(
            run=run,
            step=step,
            rank=0,
            world_size=1,
            generation=0,
            slot_bytes=align(DATA_OFFSET + layout.data_bytes) + len(meta.encode()),
            data_bytes=layout.data_bytes,
            coordinates={},
            tree=image.tree,
            tensors=tensors,
            shard_bytes=writer.stored_bytes,
        )
        read_back(file, index)
        file.publish()
    write_file(index_path(directory, 0), index.encode())
    return index


def _raw(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
