"""Files of weights: each must have what config.json says."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast_hooks import ConfigurationError
from holdfast_trainer import start_checks
from holdfast_trainer.config import TrainerConfig, build
from holdfast_trainer.weights.weight_folder import INDEX_FILE, SINGLE_FILE, find_weights
from tests.support.llama_folders import write_llama

SECOND = "model-00002-of-00003.safetensors"
Q_NORM = "model.layers.0.self_attn.q_norm.weight"


def config_of(folder: Path) -> TrainerConfig:
    return build([f"--model.init_from={folder}"], {})


def refusal_of(folder: Path) -> str:
    """Return the refusal before a rank starts, without its beginning."""
    with pytest.raises(ConfigurationError) as refusal:
        start_checks.expect_usable_here(config_of(folder))
    beginning = f"model.init_from {folder}: "
    assert str(refusal.value).startswith(beginning)
    return str(refusal.value).removeprefix(beginning)


def edit(path: Path, **tensors: torch.Tensor) -> None:
    save_file(load_file(path) | tensors, path)


def test_every_parameter_is_found_in_its_file(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", files=3)
    found = find_weights(folder, config_of(folder).model)
    assert found["layers.1.attention.key.weight"].name == "model.layers.1.self_attn.k_proj.weight"
    assert found["layers.1.attention.key.weight"].shape == (16, 32)
    assert {weight.path.name for weight in found.values()} == {path.name for path in folder.glob("model-*")}
    assert len(found) == 3 + 9 * 4


def test_an_untied_head_starts_as_the_tied_embedding(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", tied=True)
    model = config_of(folder).model
    assert "head.weight" not in find_weights(folder, model)
    untied = find_weights(folder, model.model_copy(update={"tied": False}))
    assert untied["head.weight"] == untied["embedding.weight"]


def test_frequencies_that_old_versions_saved_are_left_alone(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    edit(folder / SINGLE_FILE, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)})
    start_checks.expect_usable_here(config_of(folder))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", files=3)
    (folder / SECOND).unlink()
    assert refusal_of(folder) == f"{SECOND}: missing, but {INDEX_FILE} names it: copy it there"


@pytest.mark.parametrize("kept", [0, 5, 2000, -1])
def test_a_truncated_file_is_named(tmp_path: Path, kept: int) -> None:
    folder = write_llama(tmp_path / "llama", files=3)
    whole = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(whole[:kept])
    refusal = refusal_of(folder)
    assert refusal.startswith(f"{SECOND}: not a whole safetensors file (")
    assert refusal.endswith("): copy it again")
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        ("model.norm.weight", torch.ones(31), "has the shape (31,), but config.json gives (32,): correct either"),
        ("model.norm.weight", torch.ones(32, dtype=torch.int8), "has the type I8: give weights of F64, F32, F16, BF16"),
        (Q_NORM, torch.ones(4), "belongs to no parameter of a Llama model: give another model"),
    ],
    ids=["shape", "type that needs a scale", "unknown"],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(
    tmp_path: Path, name: str, tensor: torch.Tensor, problem: str
) -> None:
    folder = write_llama(tmp_path / "llama")
    edit(folder / SINGLE_FILE, **{name: tensor})
    assert refusal_of(folder) == f"{SINGLE_FILE}: {name} {problem}"


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    tensors = load_file(folder / SINGLE_FILE)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / SINGLE_FILE)
    assert refusal_of(folder) == "no file has lm_head.weight: give all files of the model"


@pytest.mark.parametrize("places", [None, [], {"model.norm.weight": 3}, {"model.norm.weight": "../else.safetensors"}])
def test_an_index_that_names_no_files_is_refused(tmp_path: Path, places: object) -> None:
    folder = write_llama(tmp_path / "llama", files=3)
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": places}))
    assert refusal_of(folder) == f"{INDEX_FILE}: weight_map does not name files: copy it again"


def test_an_index_of_other_files_is_refused(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", files=3)
    index = json.loads((folder / INDEX_FILE).read_text())
    index["weight_map"]["model.norm.weight"] = SECOND
    index["weight_map"]["extra"] = SECOND
    (folder / INDEX_FILE).write_text(json.dumps(index))
    assert refusal_of(folder).startswith(f"{SECOND}: has no ")


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    (folder / SINGLE_FILE).rename(folder / "pytorch_model.bin")
    assert refusal_of(folder) == f"has neither {SINGLE_FILE} nor {INDEX_FILE}: save the model as safetensors"
