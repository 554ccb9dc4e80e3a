"""Takes tensors out of a checkpoint into one file that other programs read."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load

from holdfast_base.files import replacement
from holdfast_cli.checkpoints.tensor_file import TensorFileError, TensorForm, create
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_hooks.restore.dcp.dcp_reader import SavedStateReader
from holdfast_hooks.restore.saved_state import SavedState, SavedTensor
from holdfast_hooks.state.encoding import decode_state
from holdfast_hooks.state.tree import is_mapping, items_of, key_text, kind_of, tensors_of
from holdfast_proto.snapshot import StateTree

TREE = "holdfast_tree"
"""Metadata key of a safetensors file with a whole state. Its value is the tree, without tensors, as JSON."""
MODEL = "model"
"""Name of the model in the state given to attach(), by convention."""


@dataclass(frozen=True)
class Exported:
    """Contents of a written file."""

    tensors: int
    nbytes: int


def export_checkpoint(directory: Path, target: Path, *, everything: bool) -> Exported:
    """Write the model's weights, or ``everything``, of the checkpoint in ``directory`` to ``target``.

    Tensors are read one stored part at a time, straight to their places in the file. ``.pt`` takes twice
    the room while it is written. Of state that every rank has for itself, the file gets that of rank 0. Raises
    CommandError, CheckpointUnreadable, and SettingsError if parts make no whole; nothing is left behind then.
    """
    if target.suffix not in _WRITERS:
        raise SettingsError(f"--to {target}: end it with {' or '.join(_WRITERS)}")
    saved = SavedState.open(directory, 0)
    tree = join(saved.trees)
    if not everything:
        tree = _model_of(tree)
    with write_errors(target), replacement(target) as partial:
        return _WRITERS[target.suffix](saved, tree, partial, everything=everything)


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """Turn the errors of writing to ``target`` into CommandError."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"--to {target}: {error.strerror}: name a place with room that you can write to") from None
    except TensorFileError as error:
        raise CommandError(f"--to {target}: {error}: export to a .pt file instead") from None


def join(trees: Sequence[StateTree]) -> StateTree:
    """Return the trees of all ranks as one: mappings have what any rank has, the rest is as the first rank has it."""
    mappings = [tree for tree in trees if is_mapping(tree)]
    if not is_mapping(trees[0]):
        return trees[0]
    keys: dict[str, StateTree] = {}
    nodes: dict[str, list[StateTree]] = {}
    for tree in mappings:
        for key, node in items_of(tree):
            keys.setdefault(key_text(key), key)
            nodes.setdefault(key_text(key), []).append(node)
    return {kind_of(trees[0]): [[key, join(nodes[text])] for text, key in keys.items()]}


def _model_of(tree: StateTree) -> StateTree:
    states = {key_text(key): node for key, node in items_of(tree)}
    if MODEL not in states:
        raise CommandError(f"the checkpoint has no state named {MODEL} but {', '.join(states)}: add --all")
    return states[MODEL]


def _write_safetensors(saved: SavedState, tree: StateTree, partial: Path, *, everything: bool) -> Exported:
    names = list(tensors_of(tree))
    metadata = {"format": "pt"} | ({TREE: json.dumps(tree)} if everything else {})
    rename = str if everything else _within_model
    return _count(fill(saved, names, partial, metadata, rename))


def _write_pt(
    saved: SavedState,
    tree: StateTree,
    partial: Path,
    *,
    everything: bool,  # noqa: ARG001 - a .pt file nests the state as it was
) -> Exported:
    scratch = partial.with_name(f"{partial.name}-tensors")
    numbers = {name: str(number) for number, name in enumerate(tensors_of(tree))}
    try:
        filled = fill(saved, list(numbers), scratch, {}, numbers.__getitem__, is_scratch=True)
        # Arrays become tensors: what unpickles an array is not among what weights_only allows.
        torch.save(decode_state(tree, lambda _kind, name: filled[numbers[name]]), partial)
    finally:
        scratch.unlink(missing_ok=True)
    return _count(filled)


_WRITERS: Mapping[str, Callable[..., Exported]] = {".safetensors": _write_safetensors, ".pt": _write_pt}


def _within_model(name: str) -> str:
    return name.removeprefix(f"{MODEL}/")


def fill(
    saved: SavedState,
    names: Sequence[str],
    path: Path,
    metadata: Mapping[str, str],
    rename: Callable[[str], str],
    *,
    dtype: str | None = None,
    is_scratch: bool = False,
) -> Mapping[str, torch.Tensor]:
    """Create a file of these tensors and return them. ``dtype`` is torch's name of their type in the file.

    Raises CheckpointUnreadable, TensorFileError and OSError.
    """
    wanted = {name: saved.tensors[name] for name in names}
    path.unlink(missing_ok=True)  # an export that was killed leaves one
    forms = [TensorForm(rename(name), dtype or tensor.dtype, tensor.global_shape) for name, tensor in wanted.items()]
    tensors = create(path, forms, metadata, is_scratch=is_scratch)
    targets = {name: tensors[rename(name)] for name, tensor in wanted.items() if 0 not in tensor.global_shape}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # there is no process group, on purpose
            _load(saved, wanted, targets)
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        raise first from None
    return tensors


def _load(saved: SavedState, wanted: Mapping[str, SavedTensor], targets: Mapping[str, torch.Tensor]) -> None:
    load(
        dict(targets),
        storage_reader=SavedStateReader(saved.directory, wanted),
        planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        no_dist=True,
    )


def _count(tensors: Mapping[str, torch.Tensor]) -> Exported:
    return Exported(len(tensors), sum(tensor.nbytes for tensor in tensors.values()))
