"""Reads parts of all tensors: their digests, and whether they hold NaN or infinite numbers."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from holdfast_checkpoint.guard.damage import DamagedFileError, printable
from holdfast_checkpoint.guard.finite_values import ValueCounts, count_values, is_floating, item_bytes
from holdfast_checkpoint.guard.paced_reading import FileReader, PacedFile
from holdfast_checkpoint.guard.tensor_place import Role, TensorPlace
from holdfast_checkpoint.guard.torch_archive import TorchArchive

_LEAST_WINDOW_BYTES = 64 << 10
"""Smallest part of a tensor that is read, unless the tensor is smaller. Less would cost a seek for little."""
_ALIGNMENT = 16
"""A part begins at a multiple of this, so that it has whole elements of any dtype."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a tensor that was read."""

    begin: int
    """First byte in the tensor."""
    size: int
    digest: bytes


@dataclass
class ValuesRead:
    """What was read of a checkpoint."""

    windows: dict[str, Window] = field(default_factory=dict)
    """Of the weights, by tensor."""
    bad: dict[str, ValueCounts] = field(default_factory=dict)
    """Tensors of weights and optimizer that hold NaN or infinite numbers."""
    tensors: int = 0
    """Tensors that were read, in part or as a whole."""


def read_values(places: Mapping[str, TensorPlace], reader: FileReader, budget_bytes: int | None) -> ValuesRead:
    """Read up to ``budget_bytes`` of weights and optimizer state, spread over all tensors; None: everything.

    Which parts are read depends on names and sizes only, so that the parts of two checkpoints can be compared.
    Raises DamagedFileError, which names the file, and OSError.
    """
    found = ValuesRead()
    chosen = _chosen({name: place for name, place in places.items() if _is_judged(place)}, budget_bytes)
    for path, names in _by_file(places, chosen):
        try:
            with reader.open(path) as file:
                for name in names:
                    _read_one(file, name, places[name], chosen[name], found)
        except DamagedFileError as error:
            raise type(error)(f"{path.name}: {error}") from None
    return found


def are_equal(a: Mapping[str, TensorPlace], b: Mapping[str, TensorPlace], reader: FileReader) -> bool:
    """Return whether the weights of two checkpoints are the same bytes. Reads until the first difference.

    Raises DamagedFileError and OSError.
    """
    for name in sorted(_weights(a), key=lambda name: (str(a[name].path), a[name].offset)):
        if name not in b:
            return False
        with reader.open(a[name].path) as one, reader.open(b[name].path) as other:
            begin_a, count_a = _span(one, a[name])
            begin_b, count_b = _span(other, b[name])
            if count_a != count_b:
                return False
            pairs = zip(one.pieces(begin_a, count_a), other.pieces(begin_b, count_b), strict=True)
            if any(left != right for left, right in pairs):
                return False
    return True


def may_be_equal(a: ValuesRead, b: ValuesRead) -> bool:
    """Return whether all parts of the weights that were read in both checkpoints are the same bytes."""
    return bool(a.windows) and a.windows == b.windows


def covers_all_weights(values: ValuesRead, places: Mapping[str, TensorPlace]) -> bool:
    """Return whether a part of each tensor of the weights was read."""
    return values.windows.keys() >= set(_weights(places))


def _weights(places: Mapping[str, TensorPlace]) -> Iterator[str]:
    return (name for name, place in places.items() if place.role is Role.WEIGHTS and _is_judged(place))


def _is_judged(place: TensorPlace) -> bool:
    is_state = place.role in (Role.WEIGHTS, Role.OPTIMIZER)
    return is_state and place.is_readable and place.nbytes > 0 and is_floating(place.dtype)


def _chosen(places: Mapping[str, TensorPlace], budget_bytes: int | None) -> dict[str, int | None]:
    """Return the tensors to read, each with the bytes of it; None: all."""
    if budget_bytes is None:
        return dict.fromkeys(places)
    names: list[str] = []
    least_bytes = 0
    for name in sorted(places, key=lambda name: zlib.crc32(name.encode())):  # any order that names alone decide
        least_bytes += min(places[name].nbytes, _LEAST_WINDOW_BYTES)
        if names and least_bytes > budget_bytes:
            break
        names.append(name)
    level = _level((places[name].nbytes for name in names), budget_bytes)
    return dict.fromkeys(names, level)


def _level(sizes: Iterable[int], budget: int) -> int:
    """Return the largest number of bytes that may be read of each tensor so that all together stay in ``budget``."""
    ordered = sorted(sizes)
    level = budget
    for number, size in enumerate(ordered):
        level = budget // (len(ordered) - number)
        if size >= level:
            break
        budget -= size
    return max(level, _ALIGNMENT)


def _by_file(places: Mapping[str, TensorPlace], chosen: Mapping[str, int | None]) -> list[tuple[Path, list[str]]]:
    files: dict[Path, list[str]] = {}
    for name in sorted(chosen, key=lambda name: places[name].offset):
        files.setdefault(places[name].path, []).append(name)
    return sorted(files.items())


def _span(file: PacedFile, place: TensorPlace) -> tuple[int, int]:
    """Return the first byte of a tensor in its file, and its bytes."""
    if not place.is_archived:
        return place.offset, place.nbytes
    archive = TorchArchive(file, place.offset, place.nbytes)
    tensors = [tensor for _, tensor in archive.tensors()]
    if len(tensors) != 1 or tensors[0].dtype != place.dtype or tensors[0].shape != place.shape:
        raise DamagedFileError(f"it holds another tensor than its index says, at byte {place.offset}")
    return archive.place(tensors[0]) if tensors[0].is_dense else (0, 0)


def _read_one(file: PacedFile, name: str, place: TensorPlace, most: int | None, found: ValuesRead) -> None:
    start, nbytes = _span(file, place)
    begin, size = 0, nbytes
    if most is not None and nbytes > most:
        size = max(most // _ALIGNMENT, 1) * _ALIGNMENT
        begin = zlib.crc32(name.encode()) % (nbytes - size + 1) // _ALIGNMENT * _ALIGNMENT
    if size % item_bytes(place.dtype):
        raise DamagedFileError(f"tensor {printable(name)} ends within a number")
    digest, counts = xxhash.xxh3_128(), ValueCounts()
    for piece in file.pieces(start + begin, size):
        digest.update(piece)
        counts.add(count_values(piece, place.dtype))
    found.tensors += 1
    if place.role is Role.WEIGHTS:
        found.windows[name] = Window(begin, size, digest.digest())
    if counts.is_bad:
        found.bad[name] = counts
