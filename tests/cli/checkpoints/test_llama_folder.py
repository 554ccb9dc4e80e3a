"""Folders that transformers loads, written from checkpoints. tests/frameworks loads them with transformers itself."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import Result

from holdfast_trainer.config import build
from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.planning.settings import as_toml
from holdfast_trainer.weights.llama_tensors import llama_tensors
from holdfast_trainer.weights.weight_folder import find_weights
from tests.cli.conftest import checkpoint
from tests.support.llama_folders import MODEL, llama_weights, write_llama


@pytest.fixture
def trainer_file(tmp_path: Path) -> Path:
    """A configuration of the trainer."""
    path = tmp_path / "run.toml"
    path.write_text(as_toml(build([], {"model": MODEL})))
    return path


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A checkpoint of that model, as one rank saves it."""
    model = ModelConfig(**MODEL)
    weights, names = llama_weights(model), llama_tensors(model)
    save_file({ours: weights[tensor.name] for ours, tensor in names.items()}, tmp_path / "model.safetensors")
    done = checkpoint("import", tmp_path / "model.safetensors", "--into", tmp_path / "c", "--step", 3, "--run", "r")
    assert done.exit_code == 0, done.output
    return tmp_path / "c"


def export(checkpoints: Path, to: Path, *flags: object) -> Result:
    return checkpoint("export", "--checkpoints", checkpoints, "--to", to, *flags)


FIX = "give the configuration of this run with --llama"
GATE = "model/layers.0.feed_forward.gate.weight"


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_a_folder_has_every_bit_of_the_checkpoint_and_the_run_can_start_from_it(
    checkpoints: Path, trainer_file: Path, tmp_path: Path
) -> None:
    to = tmp_path / "llama"
    done = export(checkpoints, to, "--llama", trainer_file, "--file-size", 1e-4)
    assert done.exit_code == 0, done.output
    found, expected = tensors_in(to), llama_weights(ModelConfig(**MODEL))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    model = build([f"--model.init_from={to}"], {}).model
    assert len(find_weights(to, model)) == len(expected)
    files = sorted(path.name for path in to.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert all(path.stat().st_size < 1e5 + 4096 for path in to.glob("*.safetensors"))
    assert set(json.loads((to / "model.safetensors.index.json").read_text())["weight_map"].values()) == set(files)


def test_a_small_model_is_one_file_of_the_type_that_is_asked_for(
    checkpoints: Path, trainer_file: Path, tmp_path: Path
) -> None:
    to = tmp_path / "llama"
    assert export(checkpoints, to, "--llama", trainer_file, "--dtype", "bfloat16").exit_code == 0
    assert sorted(path.name for path in to.iterdir()) == ["config.json", "model.safetensors"]
    expected = llama_weights(ModelConfig(**MODEL))
    assert all(torch.equal(tensor, expected[name].bfloat16()) for name, tensor in tensors_in(to).items())
    assert json.loads((to / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_fields_that_the_trainer_does_not_know_come_from_the_first_model(checkpoints: Path, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    fields = {"bos_token_id": 5, "eos_token_id": [6, 7], "max_position_embeddings": 4096}
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    file = tmp_path / "from.toml"
    file.write_text(f'[model]\ninit_from = "{source}"\n')
    assert export(checkpoints, tmp_path / "llama", "--llama", file).exit_code == 0
    written = json.loads((tmp_path / "llama" / "config.json").read_text())
    assert {name: written[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--dtype", "float16"], "--dtype float16: needs --llama: add it or leave --dtype out"),
        (["--llama", "FILE", "--all"], "--all and --llama exclude each other: leave one out"),
        (["--llama", "FILE", "--file-size", 0], "--file-size 0: give a number above 0 (GB)"),
        (["--llama", "FILE", "--file-size", "inf"], "--file-size inf: give a number above 0 (GB)"),
        (["--llama", "no.toml"], "--llama no.toml: --config no.toml: No such file or directory"),
        (["--llama", "EXPERTS"], "--llama: model.experts is 2, but a Llama model has no experts: export one file"),
        (["--llama", "DEEPER"], f"the checkpoint has no model/layers.4.attention_norm.weight: {FIX}"),
        (["--llama", "SHALLOWER"], f"model/layers.3.attention.key.weight belongs to no Llama model: {FIX}"),
        (["--llama", "WIDER"], f"{GATE} has the shape (48, 32) and not (64, 32), as the configuration says: {FIX}"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    checkpoints: Path, trainer_file: Path, tmp_path: Path, flags: list[object], line: str
) -> None:
    others = {"EXPERTS": {"experts": 2}, "DEEPER": {"layers": 5}, "SHALLOWER": {"layers": 3}, "WIDER": {"hidden": 64}}
    for name, change in others.items():
        (tmp_path / name).write_text(as_toml(build([], {"model": {**MODEL, **change}})))
    places: dict[object, object] = {"FILE": trainer_file, **{name: tmp_path / name for name in others}}
    done = export(checkpoints, tmp_path / "llama", *(places.get(flag, flag) for flag in flags))
    assert done.exit_code != 0
    assert done.output.strip().startswith(f"holdfast: {line}")
    assert not list(tmp_path.glob("llama*"))


def test_a_folder_that_exists_stays_as_it_is(checkpoints: Path, trainer_file: Path, tmp_path: Path) -> None:
    done = export(checkpoints, tmp_path, "--llama", trainer_file)
    assert done.output.strip() == f"holdfast: --to {tmp_path}: exists: name a folder that does not"


def test_a_folder_is_no_file_to_import(tmp_path: Path) -> None:
    done = checkpoint("import", write_llama(tmp_path / "llama"), "--into", tmp_path / "c", "--step", 1, "--run", "r")
    assert "is a folder: name a file, or start the trainer with --model.init_from" in done.output
