"""Lists what a checkpoint holds: each tensor and its place, and what is wrong with its files."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_checkpoint.guard import dcp_folder
from holdfast_checkpoint.guard.candidates import Candidate, shards_of
from holdfast_checkpoint.guard.damage import DamagedFileError, DamageFound, Reason, UnsafePickleError, printable
from holdfast_checkpoint.guard.finite_values import tensor_bytes
from holdfast_checkpoint.guard.inert_pickle import InertTensor
from holdfast_checkpoint.guard.paced_reading import FileReader, PacedFile
from holdfast_checkpoint.guard.tensor_place import Role, TensorPlace, roles
from holdfast_checkpoint.guard.torch_archive import MAGIC, TorchArchive, read_old_file

LARGEST_HEADER_BYTES = 100_000_000
"""The limit of the package safetensors."""

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32",
    "U32": "uint32", "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64", "C64": "complex64",
}  # fmt: skip
_SIZE_BYTES = 8


def places_in(file: PacedFile) -> Iterator[TensorPlace]:
    """Yield each tensor. Raises DamagedFileError if the header or a length is wrong."""
    if file.size < _SIZE_BYTES:
        raise DamagedFileError(f"it has {file.size} bytes, and no header")
    length = int.from_bytes(file.read(0, _SIZE_BYTES), "little")
    if length > LARGEST_HEADER_BYTES:
        raise DamagedFileError("it does not begin with the size of a safetensors header")
    header = _header(file.read(_SIZE_BYTES, length))
    header.pop("__metadata__", None)
    begin = _SIZE_BYTES + length
    try:
        tensors = sorted((_tensor(name, fields) for name, fields in header.items()), key=lambda each: each[3:])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedFileError("its header describes a tensor that cannot be") from None
    end = 0
    for name, dtype, shape, start, stop in tensors:
        if start != end or (dtype and tensor_bytes(dtype, shape) != stop - start):
            raise DamagedFileError(f"its header gives tensor {printable(name)} bytes that cannot be its own")
        end = stop
    if begin + end != file.size:
        raise DamagedFileError(f"it has {file.size} bytes, and its header describes {begin + end}")
    kinds = roles({name: dtype for name, dtype, *_ in tensors}, file.path.name)
    for name, dtype, shape, start, stop in tensors:
        yield TensorPlace(
            name, kinds[name], dtype, shape, file.path, begin + start, stop - start, is_readable=bool(dtype)
        )


def _header(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedFileError("its header is no JSON") from None
    if not isinstance(found, dict):
        raise DamagedFileError("its header is no JSON object")
    return found


def _tensor(name: str, fields: dict[str, Any]) -> tuple[str, str, tuple[int, ...], int, int]:
    """Return name, dtype, shape, and the first byte and the end in the data."""
    start, stop = fields["data_offsets"]
    numbers = (*fields["shape"], start, stop)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or start > stop:
        raise ValueError(name)
    return name, _DTYPES.get(fields["dtype"], ""), tuple(fields["shape"]), start, stop


_ARCHIVES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_TORCH_BINS = ("pytorch_model", "adapter_model", "diffusion_pytorch_model", "optimizer", "scheduler", "training_args")
"""Beginnings of the names of ``.bin`` files that torch.save writes. Vocabularies and others have that end too."""
_PER_RANK = ("mp_rank_", "rng_state", "distrib_optim", "zero_pp_rank_", "bf16_zero_pp_rank_", "pytorch_model_fsdp_rank")
_ZERO_RANK = re.compile(r"zero_pp_rank_(\d{1,6})_")
_STEP_FOLDER = re.compile(r"\w*(step|iter|epoch)[=_-]?\d{1,15}")
"""Folder within a checkpoint, such as ``global_step100`` of DeepSpeed."""
_ODD = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
_MOST_NAMED = 5
_LARGEST_JSON_BYTES = 256 << 20


@dataclass
class Inventory:
    """What was found in the files of a checkpoint."""

    places: dict[str, TensorPlace] = field(default_factory=dict)
    """By name of the tensor or chunk."""
    archives: list[Path] = field(default_factory=list)
    """Files that are archives of torch as a whole."""
    ranks: frozenset[str] = frozenset()
    """Files and folders that a rank writes for itself."""
    findings: list[DamageFound] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What could not be looked into, each with the reason."""
    modules: set[str] = field(default_factory=set)
    """Modules of other packages whose objects are in its pickles."""
    step: int | None = None
    """Step that the files themselves name."""

    def nbytes(self, role: Role) -> int:
        """Return the bytes of all tensors of a role."""
        return sum(place.content_bytes for place in self.places.values() if place.role is role)


def take_inventory(candidate: Candidate, reader: FileReader) -> Inventory:
    """Read headers and indexes, and no tensor. Raises OSError if a file cannot be read."""
    found = Inventory(ranks=frozenset(_rank_names(candidate)))
    found.findings += _holes(candidate)
    for name in sorted(candidate.files):
        path = candidate.file(name)
        try:
            with reader.open(path) as file:
                _read(file, name, candidate, found)
        except DamagedFileError as error:
            found.findings.append(DamageFound(Reason.DAMAGED, f"{name or candidate.name}: {error}", error.is_final))
        except _ODD as error:  # a file may hold anything, and the guard must live on
            what = f"it holds something that no framework writes ({type(error).__name__})"
            found.findings.append(DamageFound(Reason.DAMAGED, f"{name or candidate.name}: {what}"))
    _check_objects(found, reader)
    found.places = _by_stable_names(found.places, candidate)
    if found.modules:
        names = sorted(found.modules)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        found.unchecked.append(f"objects of {', '.join(names[:_MOST_NAMED])}{more}")
    return found


def _rank_names(candidate: Candidate) -> Iterator[str]:
    for name in candidate.files:
        yield from (part for part in name.split("/") if part.startswith(_PER_RANK))


def _holes(candidate: Candidate) -> Iterator[DamageFound]:
    """Yield the files that ranks of DeepSpeed lack: all write as many. A node may keep those of its own ranks only."""
    folders: dict[str, dict[str, set[int]]] = {}
    for name in candidate.files:
        if rank := _ZERO_RANK.search(name):
            kinds = folders.setdefault(name.rpartition("/")[0], {})
            kinds.setdefault(_ZERO_RANK.sub("zero_pp_rank_{}_", name), set()).add(int(rank[1]))
    for kinds in folders.values():
        every = set().union(*kinds.values())
        whole = set(range(min(every), max(every) + 1))
        missing = sorted((rank, kind) for kind, ranks in kinds.items() for rank in whole - ranks)
        if missing:
            ranks = ", ".join(map(str, sorted({rank for rank, _ in missing})[:_MOST_NAMED]))
            file = printable(missing[0][1].replace("{}", str(missing[0][0])))
            yield DamageFound(Reason.DAMAGED, f"files of rank {ranks} are missing, such as {file}")


def _by_stable_names(places: dict[str, TensorPlace], candidate: Candidate) -> dict[str, TensorPlace]:
    """Return the places by names that the next checkpoint has too: that of a folder may hold the step."""
    folders = {part for name in candidate.files for part in name.split("/")[:-1] if _STEP_FOLDER.fullmatch(part)}
    if len(folders) != 1:
        return places
    folder = folders.pop()
    stable = folder.rstrip("0123456789") + "*"
    return {name.replace(f"{folder}/", f"{stable}/", 1): place for name, place in places.items()}


def _read(file: PacedFile, name: str, candidate: Candidate, found: Inventory) -> None:
    last = file.path.name
    if last == dcp_folder.METADATA:
        folder = name.removesuffix(last)
        sizes = {
            each.removeprefix(folder): state.size for each, state in candidate.files.items() if each.startswith(folder)
        }
        _add(found, folder, dcp_folder.places_in(file, sizes))
    elif last.endswith(".safetensors"):
        folder = name.rpartition("/")[0]
        _add(found, f"{folder}/" if folder else "", places_in(file))
    elif last.endswith(".index.json"):
        _check_shards(file, name, candidate)
    elif last.endswith(_ARCHIVES):
        _read_archive(file, name, found)
    elif last == "trainer_state.json":
        tail_bytes = min(file.size, 64)
        if not file.read(file.size - tail_bytes, tail_bytes).rstrip().endswith(b"}"):
            raise DamagedFileError("it is cut off")


def _add(found: Inventory, prefix: str, places: Iterator[TensorPlace]) -> None:
    for place in places:
        found.places[prefix + place.name] = place


def _check_shards(file: PacedFile, name: str, candidate: Candidate) -> None:
    if file.size > _LARGEST_JSON_BYTES:
        raise DamagedFileError(f"it has {file.size} bytes, and no index is that large")
    try:
        shards = shards_of(file.read(0, file.size))
    except (ValueError, RecursionError):
        raise DamagedFileError("it is no index of shards") from None
    folder = name.rpartition("/")[0]
    missing = sorted(each for each in shards if (f"{folder}/{each}" if folder else each) not in candidate.files)
    if missing:
        raise DamagedFileError(f"shard {printable(missing[0])}, which it names, is missing ({len(missing)} in all)")


def _read_old(file: PacedFile, name: str, found: Inventory) -> list[tuple[str, InertTensor]]:
    """Return the tensors of a file that is no zip archive, and note what it is."""
    is_other = file.path.suffix == ".pkl" or (file.path.suffix == ".bin" and not file.path.name.startswith(_TORCH_BINS))
    if not is_other and file.read(0, 1) != b"\x80":
        raise DamagedFileError("it does not begin as a file of torch.save")
    what, tensors = "a pickle of before torch 1.6", []
    try:
        tensors = read_old_file(file, found.modules)
    except DamagedFileError as error:
        if error.is_final or not is_other:
            raise
        what = "not a file of torch.save"
    found.unchecked.append(f"{name or file.path.name}: {what}")
    return tensors


def _check_objects(found: Inventory, reader: FileReader) -> None:
    """Check the pickles among the items of torch.distributed.checkpoint: it loads them without any limit."""
    objects = [each for each in found.places.values() if each.is_archived and not each.is_readable and not each.dtype]
    for path in sorted({each.path for each in objects}):
        with reader.open(path) as file:
            for item in objects:
                if item.path == path:
                    _check_object(file, item, found)


def _check_object(file: PacedFile, item: TensorPlace, found: Inventory) -> None:
    try:
        if file.read(item.offset, min(len(MAGIC), item.nbytes)) == MAGIC:
            found.modules |= TorchArchive(file, item.offset, item.nbytes).modules
        else:
            read_old_file(file, found.modules, item.offset, item.nbytes)
    except UnsafePickleError as error:
        text = f"{file.path.name}: item {printable(item.name)}: {error}"
        found.findings.append(DamageFound(Reason.DAMAGED, text, error.is_final))
    except (DamagedFileError, *_ODD):
        return  # what else is in an item is up to its writer


def _read_archive(file: PacedFile, name: str, found: Inventory) -> None:
    if file.size == 0:
        raise DamagedFileError("it is empty")
    archive = TorchArchive(file) if file.read(0, min(len(MAGIC), file.size)) == MAGIC else None
    if archive is None:
        tensors = _read_old(file, name, found)
    else:
        found.modules |= archive.modules
        if archive.root is None:
            found.unchecked.append(f"{name or file.path.name}: no archive that torch.save has written")
            return
        found.archives.append(file.path)
        tensors = list(archive.tensors())
        step = archive.root.get("global_step") if isinstance(archive.root, dict) else None
        if isinstance(step, int) and not name:
            found.step = step
    kinds = roles({path: tensor.dtype for path, tensor in tensors}, file.path.name)
    prefix = f"{name}/" if name else ""
    for path, tensor in tensors:
        is_readable = tensor.is_dense and archive is not None
        offset, nbytes = archive.place(tensor) if archive is not None and tensor.is_dense else (0, 0)
        found.places[prefix + path] = TensorPlace(
            path, kinds[path], tensor.dtype, tensor.shape, file.path, offset, nbytes, is_readable=is_readable
        )
