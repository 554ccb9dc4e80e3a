"""config.json of Hugging Face and the settings of [model]."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig, build
from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.weights.llama_config import as_llama_config, model_settings
from tests.support.llama_folders import MODEL, edit_config, write_llama

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

WRONG = {
    '"attention_bias": true': "attention_bias is true, but the trainer has false only: give another model",
    '"mlp_bias": true': "mlp_bias is true, but the trainer has false only: give another model",
    '"hidden_act": "gelu"': 'hidden_act is "gelu", but the trainer has "silu" only: give another model',
    '"attention_dropout": 0.1': "attention_dropout is 0.1, but the trainer has 0 only: give another model",
    '"sliding_window": 512': "sliding_window is 512, but the trainer has null only: give another model",
    '"logit_scale": 2': "logit_scale is 2, a field that the trainer does not know: remove it if it has no effect",
    '"model_type": "qwen2"': 'model_type is "qwen2", but only LlamaForCausalLM and MistralForCausalLM can be loaded: '
    "give such a model",
    '"architectures": ["LlamaForSequenceClassification"]': 'architectures is ["LlamaForSequenceClassification"], '
    "but only LlamaForCausalLM and MistralForCausalLM can be loaded: give such a model",
    '"model_type": "mistral", "architectures": ["MistralForCausalLM"]': "sliding_window is missing, "
    "and its default is a window: set it to null if there is none",
    '"hidden_size": "64"': 'hidden_size is "64", but must be a positive whole number: correct it',
    '"num_hidden_layers": null': "num_hidden_layers is null, but must be a positive whole number: correct it",
    '"rms_norm_eps": 0': "rms_norm_eps is 0, but must be a positive number: correct it",
    '"rope_scaling": {"rope_type": "yarn", "factor": 2.0}': 'rope_scaling.rope_type is "yarn", '
    "but the trainer knows default, linear, llama3 only: give another model",
    '"rope_scaling": {"type": "linear"}': "rope_scaling.factor is null, but must be a positive number: correct it",
    '"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 1.1}': "rope_scaling.attention_factor is "
    "1.1, which linear does not have: remove it if it has no effect",
    '"rope_scaling": [1]': "rope_scaling is [1], but must be a table or null: correct it",
}
"""Fields of config.json, and the line that refuses them."""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tied": True, "head_dim": 16, "norm_epsilon": 1e-6},
        {"rope_scaling": "linear", "rope_factor": 4.0, "rope_theta": 500_000.0},
        {"rope_scaling": "llama3", "rope_factor": 32.0, "rope_high_frequency": 8.0, "rope_sequence": 4096},
    ],
)
def test_settings_come_back_from_the_file_that_they_became(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = ModelConfig(**{**MODEL, **settings})
    (tmp_path / "config.json").write_text(json.dumps(as_llama_config(model, sequence=8, dtype="float32")))
    assert ModelConfig(**model_settings(tmp_path)) == model


def test_the_table_of_transformers_5_says_the_same_as_the_two_fields_before(tmp_path: Path) -> None:
    old, new = (write_llama(tmp_path / name) for name in ("old", "new"))
    edit_config(old, rope_scaling=LLAMA3, rope_theta=5e5)
    edit_config(new, rope_scaling=None, rope_theta=None, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert model_settings(old) == model_settings(new)
    assert model_settings(new)["rope_theta"] == 5e5
    assert model_settings(new)["rope_factor"] == 32.0


def test_old_llama_without_shared_heads_has_as_many_of_them_as_query_heads(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "old")
    edit_config(folder, num_key_value_heads=None)
    assert model_settings(folder)["kv_heads"] == MODEL["heads"]


def test_mistral_without_a_window_is_a_llama(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "mistral")
    edit_config(folder, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=None)
    assert model_settings(folder)["dim"] == MODEL["dim"]


@pytest.mark.parametrize(("fields", "line"), WRONG.items(), ids=WRONG)
def test_what_the_model_cannot_compute_is_refused_by_its_field(tmp_path: Path, fields: str, line: str) -> None:
    folder = write_llama(tmp_path / "llama")
    edit_config(folder, **json.loads(f"{{{fields}}}"))
    with pytest.raises(ConfigurationError) as refusal:
        build([f"--model.init_from={folder}"], {})
    assert str(refusal.value) == f"model.init_from {folder}: config.json: {line}"


@pytest.mark.parametrize(
    ("contents", "line"),
    [
        (None, "No such file or directory: give a folder of weights"),
        ("{", "not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)): copy it again"),
        ("[]", "holds no JSON object: copy it again"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, contents: str | None, line: str) -> None:
    if contents is not None:
        (tmp_path / "config.json").write_text(contents)
    with pytest.raises(ConfigurationError) as refusal:
        build([f"--model.init_from={tmp_path}"], {})
    assert str(refusal.value) == f"model.init_from {tmp_path}: config.json: {line}"


def test_the_weights_give_the_settings_that_are_not_set(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", tied=True, rope_theta=500.0)
    config = build([f"--model.init_from={folder}"], {"model": {"dim": 32, "rope_theta": 1000.0, "tied": False}})
    assert config.model.layers == MODEL["layers"]
    assert config.model.rope_theta == 1000.0
    assert not config.model.tied
    assert TrainerConfig(model=config.model) == config


def test_a_setting_that_contradicts_the_weights_is_refused(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    with pytest.raises(ConfigurationError) as refusal:
        build([f"--model.init_from={folder}", "--model.layers=2", "--model.tied=true"], {"model": {"experts": 4}})
    assert str(refusal.value).splitlines() == [
        f"model.layers is 2, but 4 in {folder}/config.json: remove model.layers",
        f"model.tied is True, but False in {folder}/config.json: remove model.tied",
        f"model.experts is 4, but model.init_from {folder} has weights without experts: set it to 0",
    ]
