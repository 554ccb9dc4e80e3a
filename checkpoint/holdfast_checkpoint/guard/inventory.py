"""Lists what a checkpoint holds: each tensor and its place, and what is wrong with its files."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_checkpoint.guard import dcp_folder, safetensors_header
from holdfast_checkpoint.guard.candidates import Candidate, shards_of
from holdfast_checkpoint.guard.damage import DamagedFileError, Finding, Reason, printable
from holdfast_checkpoint.guard.paced_reading import FileReader, PacedFile
from holdfast_checkpoint.guard.tensor_place import Role, TensorPlace, roles
from holdfast_checkpoint.guard.torch_archive import MAGIC, TorchArchive

_ARCHIVES = (".ckpt", ".pt", ".pth", ".bin")
_TORCH_BINS = ("pytorch_model", "adapter_model", "diffusion_pytorch_model", "optimizer", "scheduler", "training_args")
"""Beginnings of the names of ``.bin`` files that torch.save writes. Vocabularies and others have that end too."""
_PER_RANK = ("mp_rank_", "rng_state", "distrib_optim", "zero_pp_rank_", "bf16_zero_pp_rank_")
_ODD = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
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
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What could not be looked into, each with the reason."""
    step: int | None = None
    """Step that the files themselves name."""

    def nbytes(self, role: Role) -> int:
        """Return the bytes of all tensors of a role."""
        return sum(place.content_bytes for place in self.places.values() if place.role is role)


def take_inventory(candidate: Candidate, reader: FileReader) -> Inventory:
    """Read headers and indexes, and no tensor. Raises OSError if a file cannot be read."""
    found = Inventory(ranks=frozenset(_rank_names(candidate)))
    for name in sorted(candidate.files):
        path = candidate.file(name)
        try:
            with reader.open(path) as file:
                _read(file, name, candidate, found)
        except DamagedFileError as error:
            found.findings.append(Finding(Reason.DAMAGED, f"{name or candidate.name}: {error}"))
        except _ODD as error:  # a file may hold anything, and the guard must live on
            what = f"it holds something that no framework writes ({type(error).__name__})"
            found.findings.append(Finding(Reason.DAMAGED, f"{name or candidate.name}: {what}"))
    return found


def _rank_names(candidate: Candidate) -> Iterator[str]:
    for name in candidate.files:
        yield from (part for part in name.split("/") if part.startswith(_PER_RANK))


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
        _add(found, f"{folder}/" if folder else "", safetensors_header.places_in(file))
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


def _read_archive(file: PacedFile, name: str, found: Inventory) -> None:
    if file.size == 0:
        raise DamagedFileError("it is empty")
    if file.read(0, min(len(MAGIC), file.size)) != MAGIC:
        if file.read(0, 1) == b"\x80":
            found.unchecked.append(f"{name or file.path.name}: a pickle of before torch 1.6")
            return
        if file.path.suffix == ".bin" and not file.path.name.startswith(_TORCH_BINS):
            found.unchecked.append(f"{name or file.path.name}: not a file of torch.save")
            return
        raise DamagedFileError("it does not begin as a file of torch.save")
    archive = TorchArchive(file)
    if archive.root is None:
        found.unchecked.append(f"{name or file.path.name}: no archive that torch.save has written")
        return
    found.archives.append(file.path)
    tensors = list(archive.tensors())
    kinds = roles({path: tensor.dtype for path, tensor in tensors}, file.path.name)
    prefix = f"{name}/" if name else ""
    for path, tensor in tensors:
        offset, nbytes = archive.place(tensor) if tensor.is_dense else (0, 0)
        found.places[prefix + path] = TensorPlace(
            path, kinds[path], tensor.dtype, tensor.shape, file.path, offset, nbytes, is_readable=tensor.is_dense
        )
    step = archive.root.get("global_step") if isinstance(archive.root, dict) else None
    if isinstance(step, int) and not name:
        found.step = step
