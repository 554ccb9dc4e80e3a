"""Reads the index of torch.distributed.checkpoint: ``.metadata``, a pickle that says where each tensor is.

Classes: torch/distributed/checkpoint/metadata.py and filesystem.py. Megatron's ``torch_dist`` has the same files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_checkpoint.guard.damage import DamagedFileError, printable
from holdfast_checkpoint.guard.finite_values import tensor_bytes
from holdfast_checkpoint.guard.inert_pickle import InertObject, dtype_of, load_inert
from holdfast_checkpoint.guard.paced_reading import PacedFile
from holdfast_checkpoint.guard.tensor_place import Role, TensorPlace, roles

METADATA = ".metadata"
SUFFIX = ".distcp"


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where one item is."""

    path: str
    offset: int
    length: int
    is_transformed: bool
    """Whether it is compressed or encoded in another way."""


def places_in(file: PacedFile, sizes: Mapping[str, int]) -> Iterator[TensorPlace]:
    """Yield each chunk of each tensor, and each other item with the role OTHER.

    ``file``: the ``.metadata``. ``sizes``: file of its folder -> bytes. Raises DamagedFileError if a file or a range is
    missing, or if a tensor has no bytes anywhere.
    """
    root = load_inert(file.read(0, file.size))
    fields = _fields(root)
    described, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise DamagedFileError("it is no index of torch.distributed.checkpoint")
    try:
        items = dict(_item(key, value) for key, value in stored.items())
        _check_ranges(items, sizes)
        yield from _places(described, items, file.path.parent)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DamagedFileError("it describes an item that cannot be") from None


def _fields(value: object) -> dict[str, Any]:
    """Return the attributes of an inert object."""
    found: dict[str, Any] = {}
    for part in value.parts if isinstance(value, InertObject) else ():
        if isinstance(part, dict):
            found.update(part)
    return found


def _item(key: object, value: object) -> tuple[tuple[str, tuple[int, ...]], _Stored]:
    index, info = _fields(key), _fields(value)
    offsets = index.get("offset") or ()
    path, offset, length = info["relative_path"], info["offset"], info["length"]
    if not isinstance(path, str) or path.startswith("/") or ".." in Path(path).parts:
        raise DamagedFileError("it names a file outside of its folder: do not load it")
    if not all(isinstance(number, int) and number >= 0 for number in (offset, length)):
        raise ValueError(path)
    return (str(index["fqn"]), tuple(offsets)), _Stored(path, offset, length, bool(info.get("transform_descriptors")))


def _check_ranges(items: Mapping[tuple[str, tuple[int, ...]], _Stored], sizes: Mapping[str, int]) -> None:
    missing = sorted({item.path for item in items.values()} - sizes.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DamagedFileError(f"file {printable(missing[0])}{more}, which it names, is missing")
    for (name, _), item in items.items():
        if item.offset + item.length > sizes[item.path]:
            raise DamagedFileError(
                f"{printable(item.path)} has {sizes[item.path]} bytes, and {printable(name)} ends at byte"
                f" {item.offset + item.length}"
            )


def _places(
    described: Mapping[Any, Any], items: Mapping[tuple[str, tuple[int, ...]], _Stored], folder: Path
) -> Iterator[TensorPlace]:
    tensors = {str(name): _fields(value) for name, value in described.items()}
    dtypes = {name: _dtype(fields) for name, fields in tensors.items()}
    kinds = roles(dtypes)
    for name, fields in tensors.items():
        if "chunks" not in fields:  # an object of another kind, pickled
            continue
        for chunk in fields["chunks"]:
            offsets, shape = tuple(_fields(chunk)["offsets"]), tuple(_fields(chunk)["sizes"])
            item = items.get((name, offsets))
            if item is None:  # scalars have no offset in some versions
                item = items.get((name, ()))
            if item is None:
                raise DamagedFileError(f"tensor {printable(name)} has no bytes in any file")
            yield TensorPlace(
                name=f"{name}@{','.join(map(str, offsets))}" if any(offsets) else name,
                role=kinds[name],
                dtype=dtypes[name],
                shape=shape,
                path=folder / item.path,
                offset=item.offset,
                nbytes=item.length,
                is_archived=True,
                is_readable=not item.is_transformed and tensor_bytes(dtypes[name], shape) <= item.length,
            )
    others = {name for name, _ in items} - tensors.keys()
    if others:
        raise DamagedFileError(f"item {printable(min(others))} has bytes and no description")
    yield from (
        TensorPlace(
            name,
            Role.OTHER,
            "",
            (),
            folder / item.path,
            item.offset,
            item.length,
            is_archived=not item.is_transformed,
            is_readable=False,
        )
        for (name, _), item in items.items()
        if "chunks" not in tensors[name]
    )


def _dtype(fields: Mapping[str, Any]) -> str:
    properties = fields.get("properties")
    if not isinstance(properties, InertObject):
        return ""
    state = properties.state
    first = state.get("dtype") if isinstance(state, dict) else state[0] if isinstance(state, tuple) and state else None
    return dtype_of(first)
