"""The safetensors files of a model: which tensor is in which file, and whether all are as the configuration says.

Only headers are read. Nothing here needs torch, so `holdfast run` can refuse a folder before a rank starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from safetensors import SafetensorError, safe_open

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.weights.llama_config import KEY, model_settings, read_json
from holdfast_trainer.weights.llama_tensors import EMBEDDING, HEAD, IGNORED, llama_tensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")
"""Types that become fp32 without a scale of their own."""


@dataclass(frozen=True)
class StoredWeight:
    """A tensor in a file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    """Name of the type in the format, as ``BF16``."""


def find_weights(folder: Path, model: ModelConfig) -> dict[str, StoredWeight]:
    """Return the stored tensor of each of our parameters, by its name.

    Raises ConfigurationError, which names the file, if one is missing or damaged, or if a tensor is missing, has
    another shape, or belongs to no parameter.
    """
    stored = _stored_weights(folder)
    # Tied weights have no head of their own. Where the run unties them, the head starts as the embedding.
    is_tied = bool(model_settings(folder)["tied"])
    wanted = llama_tensors(model.model_copy(update={"tied": is_tied}))
    found: dict[str, StoredWeight] = {}
    for ours, tensor in wanted.items():
        weight = stored.pop(tensor.name, None)
        if weight is None:
            raise ConfigurationError(f"{KEY} {folder}: no file has {tensor.name}: give all files of the model")
        if weight.shape != tensor.shape:
            raise _refusal(
                weight, f"has the shape {weight.shape}, but config.json gives {tensor.shape}: correct either"
            )
        if weight.dtype not in _DTYPES:
            raise _refusal(weight, f"has the type {weight.dtype}: give weights of {', '.join(_DTYPES)}")
        found[ours] = weight
    for weight in stored.values():
        if not IGNORED.fullmatch(weight.name):
            raise _refusal(weight, "belongs to no parameter of a Llama model: give another model")
    if is_tied and not model.tied:
        found[HEAD] = found[EMBEDDING]
    return found


@contextmanager
def opened(path: Path, framework: Literal["np", "pt"]) -> Iterator[Any]:
    """Open a safetensors file, mapped. ``pt`` gives tensors of torch. Raises ConfigurationError, which names it."""
    try:
        path.open("rb").close()  # safetensors would not say why it cannot be opened
        with safe_open(path, framework=framework) as file:
            yield file
    except OSError as error:
        raise ConfigurationError(f"{KEY} {path.parent}: {path.name}: {error.strerror}: make it readable") from None
    except SafetensorError as error:
        raise ConfigurationError(
            f"{KEY} {path.parent}: {path.name}: not a whole safetensors file ({error}): copy it again"
        ) from None


def _stored_weights(folder: Path) -> dict[str, StoredWeight]:
    """Return all tensors in the files of ``folder`` by their names."""
    if (folder / SINGLE_FILE).exists():
        return _weights_in(folder / SINGLE_FILE)
    index = folder / INDEX_FILE
    if not index.exists():
        raise ConfigurationError(
            f"{KEY} {folder}: has neither {SINGLE_FILE} nor {INDEX_FILE}: save the model as safetensors"
        )
    places = read_json(index, f"{KEY} {folder}").get("weight_map")
    if not _is_map(places):
        raise ConfigurationError(f"{KEY} {folder}: {INDEX_FILE}: weight_map does not name files: copy it again")
    found: dict[str, StoredWeight] = {}
    for name in sorted(set(places.values())):
        if not (folder / name).exists():
            raise ConfigurationError(f"{KEY} {folder}: {name}: missing, but {INDEX_FILE} names it: copy it there")
        found |= _weights_in(folder / name)
    for name, file in places.items():
        if name not in found or found[name].path.name != file:
            raise ConfigurationError(
                f"{KEY} {folder}: {file}: has no {name}, but {INDEX_FILE} says so: copy both again"
            )
    return found


def _is_map(places: object) -> TypeGuard[dict[str, str]]:
    """Return whether ``places`` maps names of tensors to names of files in the same folder."""
    if not isinstance(places, dict):
        return False
    return all(isinstance(file, str) and Path(file).name == file for file in places.values())


def _weights_in(path: Path) -> dict[str, StoredWeight]:
    with opened(path, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        return {
            name: StoredWeight(path, name, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()
        }


def _refusal(weight: StoredWeight, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{KEY} {weight.path.parent}: {weight.path.name}: {weight.name} {problem}")
