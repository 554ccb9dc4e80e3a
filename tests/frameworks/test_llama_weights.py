"""The trainer's model against transformers' LlamaForCausalLM: the same logits from the same files, both ways."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from holdfast_cli.main import app
from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import build
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.parallel.parallelize import load_weights
from holdfast_trainer.planning.settings import as_toml
from holdfast_trainer.weights.weight_folder import find_weights
from tests.support.programs import framework

transformers = framework("transformers")
pytestmark = pytest.mark.frameworks

SEQUENCE = 64
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"num_key_value_heads": 8},
    "grouped": {},
    "one key head": {"num_key_value_heads": 1, "rms_norm_eps": 1e-5},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 16},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    "llama3, tied": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
}
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "initializer_range": 0.1,
}


def save(folder: Path, *, bits: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Save a random model in several files; return it."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **changes})).to(bits).eval()
    model.save_pretrained(folder, max_shard_size="60KB")
    return model


def trained_here(folder: Path, *flags: str) -> Transformer:
    """Return our model with the weights in ``folder``."""
    model = build([f"--model.init_from={folder}", *flags], {}).model
    ours = Transformer(model, positions=torch.arange(SEQUENCE), layers=range(model.layers), first=True, last=True)
    ours.allocate(torch.device("cpu"))
    load_weights(ModelParts((), (ours,)), find_weights(folder, model))
    return ours


def logits(model: Any) -> torch.Tensor:
    tokens = torch.randint(300, (2, SEQUENCE), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = model(tokens)
    return found if isinstance(found, torch.Tensor) else found.logits


def exported(ours: Transformer, folder: Path, *flags: object) -> Path:
    """Return a folder that `holdfast checkpoint export` wrote from a checkpoint with the weights of ``ours``."""
    save_file(dict(ours.named_parameters()), folder / "model.safetensors")
    settings = folder / "run.toml"
    settings.write_text(as_toml(build([], {"model": ours.config.model_dump()})))
    to = folder / "exported"
    source = (folder / "model.safetensors", "--into", folder / "c", "--step", 1, "--run", "r")
    target = ("--checkpoints", folder / "c", "--to", to, "--llama", settings, "--file-size", 6e-5, *flags)
    for words in (("import", *source), ("export", *target)):
        done = CliRunner().invoke(app, ("checkpoint", *map(str, words)))
        assert done.exit_code == 0, done.output
    return to


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_are_those_of_transformers_and_the_way_back_changes_no_bit(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    theirs = save(tmp_path / "llama", **variant)
    ours = trained_here(tmp_path / "llama")
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=1e-5)
    to = exported(ours, tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(to).eval()
    assert type(again) is transformers.LlamaForCausalLM
    assert torch.equal(logits(again), logits(theirs))
    before, after = tensors_in(tmp_path / "llama"), tensors_in(to)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_made_here_load_with_the_same_logits(tmp_path: Path) -> None:
    flags = ["--model.dim=64", "--model.vocabulary=300", "--model.rope_scaling=llama3", "--model.rope_sequence=16"]
    model = build(flags, {}).model
    ours = Transformer(model, positions=torch.arange(SEQUENCE), layers=range(model.layers), first=True, last=True)
    ours.initialise(torch.device("cpu"), seed=5)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported(ours, tmp_path)).eval()
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=1e-5)


def test_bfloat16_weights_come_back_as_they_were(tmp_path: Path) -> None:
    save(tmp_path / "llama", bits=torch.bfloat16)
    to = exported(trained_here(tmp_path / "llama"), tmp_path, "--dtype", "bfloat16")
    before, after = tensors_in(tmp_path / "llama"), tensors_in(to)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert transformers.AutoModelForCausalLM.from_pretrained(to).dtype == torch.bfloat16


def test_an_untied_copy_computes_the_same(tmp_path: Path) -> None:
    theirs = save(tmp_path / "llama", tie_word_embeddings=True)
    ours = trained_here(tmp_path / "llama", "--model.tied=false")
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=1e-5)


def test_mistral_without_a_window_computes_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SMALL, sliding_window=None)
    theirs = transformers.MistralForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "mistral")
    torch.testing.assert_close(logits(trained_here(tmp_path / "mistral")), logits(theirs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("field", ["attention_bias", "mlp_bias"])
def test_biases_are_refused(tmp_path: Path, field: str) -> None:
    changes: dict[str, Any] = {field: True}
    save(tmp_path / "llama", **changes)
    with pytest.raises(ConfigurationError, match=f"{field} is true"):
        trained_here(tmp_path / "llama")


def test_qwen2_with_its_biases_is_refused(tmp_path: Path) -> None:
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL)).save_pretrained(tmp_path / "qwen")
    with pytest.raises(ConfigurationError, match='model_type is "qwen2", but only LlamaForCausalLM'):
        trained_here(tmp_path / "qwen")
