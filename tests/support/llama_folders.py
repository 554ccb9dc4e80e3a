"""Small Llama models in folders as Hugging Face writes them, without its packages."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.weights.llama_config import CONFIG_FILE, as_llama_config
from holdfast_trainer.weights.llama_tensors import llama_tensors
from holdfast_trainer.weights.weight_folder import INDEX_FILE, SINGLE_FILE

MODEL: dict[str, Any] = {"dim": 32, "layers": 4, "heads": 8, "kv_heads": 4, "hidden": 48, "vocabulary": 256}


def llama_weights(model: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Return random tensors of a model under Hugging Face's names."""
    generator = torch.Generator().manual_seed(7)
    return {
        tensor.name: (0.1 * torch.randn(tensor.shape, generator=generator) + float(len(tensor.shape) == 1)).to(dtype)
        for tensor in llama_tensors(model).values()
    }


def write_llama(folder: Path, *, files: int = 1, dtype: torch.dtype = torch.float32, **settings: Any) -> Path:
    """Write a model with the settings of MODEL and ``settings``, in ``files`` files; return its folder."""
    model = ModelConfig(**{**MODEL, **settings})
    folder.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(json.dumps(as_llama_config(model, sequence=64, dtype="float32")))
    weights = llama_weights(model, dtype)
    if files == 1:
        save_file(weights, folder / SINGLE_FILE, {"format": "pt"})
        return folder
    places = {name: f"model-{index % files + 1:05}-of-{files:05}.safetensors" for index, name in enumerate(weights)}
    for file in set(places.values()):
        save_file({name: weights[name] for name, place in places.items() if place == file}, folder / file)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def edit_config(folder: Path, **fields: Any) -> None:
    """Change fields of the model's config.json."""
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
