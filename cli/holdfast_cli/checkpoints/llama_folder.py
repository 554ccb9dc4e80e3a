"""Writes the model of a checkpoint as a folder that `transformers` loads: config.json and files of weights."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast_base.files import PARTIAL_SUFFIX
from holdfast_cli.checkpoints.exporting import MODEL, Exported, fill, write_errors
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_hooks import ConfigurationError as RefusedConfiguration
from holdfast_hooks.restore.saved_state import SavedState, SavedTensor
from holdfast_trainer import config
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.weights.llama_config import CONFIG_FILE, as_llama_config, read_config
from holdfast_trainer.weights.llama_tensors import HEAD, llama_tensors
from holdfast_trainer.weights.weight_folder import INDEX_FILE, SINGLE_FILE

_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")
"""Fields that come from the model that the run started from, because the trainer does not know them."""


@dataclass(frozen=True)
class _Weight:
    """A tensor to be written."""

    key: str
    """Name in the checkpoint."""
    name: str
    """Name in the folder."""
    dtype: str
    nbytes: int


def read_trainer_file(path: Path) -> TrainerConfig:
    """Return the trainer's configuration in a file. Raises SettingsError, with one line."""
    try:
        return config.from_arguments(["--config", str(path)])
    except RefusedConfiguration as error:
        raise SettingsError(f"--llama {path}: " + "; ".join(str(error).splitlines())) from None


def export_llama(
    directory: Path, target: Path, settings: TrainerConfig, *, dtype: str | None, file_bytes: int
) -> Exported:
    """Write the folder ``target`` with the model of the checkpoint in ``directory``, which was trained as ``settings``.

    ``dtype`` is torch's name of the weights' type; None keeps that of the checkpoint. A file has up to ``file_bytes``
    bytes of tensors, or one larger tensor. Tensors are read one stored part at a time, straight to their places.
    Raises CommandError, CheckpointUnreadable, and SettingsError; nothing is left behind then.
    """
    if target.exists():
        raise SettingsError(f"--to {target}: exists: name a folder that does not")
    saved = SavedState.open(directory, 0)
    weights = _weights(saved, settings, dtype)
    try:
        description = _described(settings, weights[0].dtype)
    except RefusedConfiguration as error:
        raise SettingsError(f"--llama: {error}") from None
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    shutil.rmtree(partial, ignore_errors=True)  # an export that was killed leaves one
    try:
        with write_errors(target):
            partial.mkdir()
            _write_files(saved, weights, partial, dtype=dtype, file_bytes=file_bytes)
            _write_json(partial / CONFIG_FILE, description)
            partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Exported(len(weights), sum(weight.nbytes for weight in weights))


def _weights(saved: SavedState, settings: TrainerConfig, dtype: str | None) -> list[_Weight]:
    """Return the tensors of the model. Raises CommandError unless the checkpoint has them all, and no others."""
    fix = "give the configuration of this run with --llama"
    model = {key: tensor for key, tensor in saved.tensors.items() if key.startswith(f"{MODEL}/")}
    weights = []
    for ours, tensor in llama_tensors(settings.model).items():
        found = model.pop(f"{MODEL}/{ours}", None)
        if found is None:
            raise CommandError(f"the checkpoint has no {MODEL}/{ours}: {fix}")
        if found.global_shape != tensor.shape:
            raise CommandError(
                f"{found.name} has the shape {found.global_shape} and not {tensor.shape}, as the configuration says: "
                + fix
            )
        weights.append(_weight(found, tensor.name, dtype or found.dtype))
    if settings.model.tied:
        model.pop(f"{MODEL}/{HEAD}", None)  # the same tensor as the embedding
    if model:
        raise CommandError(f"{next(iter(model))} belongs to no Llama model: {fix}")
    return weights


def _weight(found: SavedTensor, name: str, dtype: str) -> _Weight:
    width = getattr(torch, dtype).itemsize
    return _Weight(found.name, name, dtype, math.prod(found.global_shape) * width)


def _described(settings: TrainerConfig, dtype: str) -> dict[str, Any]:
    """Return ``config.json``. What the trainer does not know comes from the model that the run started from."""
    described = as_llama_config(settings.model, sequence=settings.data.sequence, dtype=dtype)
    described["eos_token_id"] = settings.data.document_end
    if settings.model.init_from:
        source = read_config(settings.model.weights_folder)
        described |= {name: source[name] for name in _KEPT if name in source}
        longest = source.get("max_position_embeddings")
        if not isinstance(longest, int) or longest < settings.data.sequence:
            described["max_position_embeddings"] = settings.data.sequence
    return described


def _write_files(
    saved: SavedState, weights: list[_Weight], folder: Path, *, dtype: str | None, file_bytes: int
) -> None:
    groups = list(_in_files(weights, file_bytes))
    places: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        names = {weight.key: weight.name for weight in group}
        single = len(groups) == 1
        file = SINGLE_FILE if single else f"model-{number:05}-of-{len(groups):05}.safetensors"
        fill(saved, list(names), folder / file, {"format": "pt"}, names.__getitem__, dtype=dtype)
        places |= dict.fromkeys(names.values(), file)
    if len(groups) > 1:
        total = sum(weight.nbytes for weight in weights)
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": places})


def _in_files(weights: list[_Weight], file_bytes: int) -> Iterator[list[_Weight]]:
    """Yield the weights of each file, in order."""
    group: list[_Weight] = []
    nbytes = 0
    for weight in weights:
        if group and nbytes + weight.nbytes > file_bytes:
            yield group
            group, nbytes = [], 0
        group.append(weight)
        nbytes += weight.nbytes
    yield group


def _write_json(path: Path, contents: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(contents, indent=2, sort_keys=True) + "\n", encoding="utf-8")
