"""The ``config.json`` of a Llama model of Hugging Face, as settings of ``[model]``, and the other way.

A field that changes what the model computes is either mapped or refused. So is a field that nobody here knows, because
it may change the model. Nothing here needs torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast_hooks import ConfigurationError

if TYPE_CHECKING:
    from holdfast_trainer.config_sections import ModelConfig

CONFIG_FILE = "config.json"
KEY = "model.init_from"

_COUNTS = {
    "hidden_size": "dim",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "hidden",
    "vocab_size": "vocabulary",
}
"""Field -> setting, for whole numbers."""
_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
"""Model type -> class, of the models that compute what ours does."""
_ONLY: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0, None),
    "sliding_window": (None,),
}
"""Field -> the values that our model can have."""
_WITHOUT_EFFECT = {
    "architectures", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "max_position_embeddings",
    "model_type", "pad_token_id", "pretraining_tp", "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip
"""Fields that do not change the logits."""
_ELSEWHERE = {"rms_norm_eps", "tie_word_embeddings", "head_dim", "rope_theta", "rope_scaling", "rope_parameters"}
_SCALING = {
    "factor": "rope_factor",
    "low_freq_factor": "rope_low_frequency",
    "high_freq_factor": "rope_high_frequency",
    "original_max_position_embeddings": "rope_sequence",
}
"""Field of the scaling of frequencies -> setting."""
_SCALING_FIELDS = {"default": (), "linear": ("factor",), "llama3": tuple(_SCALING)}
"""Type of the scaling -> its fields. All of them are needed."""
_DEFAULT_THETA = 10_000.0
_FREE = {"rope_theta", "rope_scaling", *_SCALING.values()}
"""Settings that may differ from those of the weights: a run may continue a model with longer sequences."""


def model_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of ``[model]`` that the ``config.json`` in ``folder`` gives.

    Raises ConfigurationError, which names the field, if our model cannot compute what this one does.
    """
    fields = _Fields(folder, read_config(folder))
    model_type = fields.check_class()
    fields.check_values(model_type)
    settings: dict[str, Any] = {}
    for name, setting in _COUNTS.items():
        if name == "num_key_value_heads" and model_type == "llama" and fields.get(name) is None:
            settings[setting] = settings["heads"]  # written before Llama had fewer of them
        else:
            settings[setting] = fields.count(name)
    head_dim = fields.count("head_dim") if fields.get("head_dim") is not None else 0
    settings["head_dim"] = 0 if head_dim * settings["heads"] == settings["dim"] else head_dim
    settings["norm_epsilon"] = fields.number("rms_norm_eps")
    settings["tied"] = fields.get("tie_word_embeddings") or False
    return settings | _rope_settings(fields)


def differences(model: "ModelConfig") -> list[str]:
    """Return one line for each setting of ``model`` that contradicts the weights of ``model.init_from``."""
    folder = model.weights_folder
    lines = []
    for setting, value in model_settings(folder).items():
        chosen = getattr(model, setting)
        # A head of its own is fine: it starts as a copy of the embedding.
        if chosen == value or setting in _FREE or (setting == "tied" and value):
            continue
        lines.append(f"model.{setting} is {chosen}, but {value} in {folder / CONFIG_FILE}: remove model.{setting}")
    if model.experts:
        lines.append(f"model.experts is {model.experts}, but {KEY} {folder} has weights without experts: set it to 0")
    return lines


def as_llama_config(model: "ModelConfig", *, sequence: int, dtype: str) -> dict[str, Any]:
    """Return the ``config.json`` of a LlamaForCausalLM that computes what ``model`` does.

    ``sequence`` is the number of tokens of a sample, ``dtype`` torch's name of the weights' type. Raises
    ConfigurationError for a model with experts.
    """
    if model.experts:
        raise ConfigurationError(f"model.experts is {model.experts}, but a Llama model has no experts: export one file")
    counts = {name: getattr(model, setting) for name, setting in _COUNTS.items()}
    scaling = None
    if model.rope_scaling != "none":
        fields = _SCALING_FIELDS[model.rope_scaling]
        scaling = {"rope_type": model.rope_scaling} | {name: getattr(model, _SCALING[name]) for name in fields}
    return {
        "architectures": [_CLASSES["llama"]],
        "model_type": "llama",
        **counts,
        "head_dim": model.head_width,
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tied,
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": sequence,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype,
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of the ``config.json`` in ``folder``. Raises ConfigurationError."""
    return read_json(folder / CONFIG_FILE, f"{KEY} {folder}")


def read_json(path: Path, setting: str) -> dict[str, Any]:
    """Return the JSON object in ``path``. Raises ConfigurationError, which begins with ``setting``."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{setting}: {path.name}: {error.strerror}: give a folder of weights") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{setting}: {path.name}: not JSON ({error}): copy it again") from None
    if not isinstance(contents, dict):
        raise ConfigurationError(f"{setting}: {path.name}: holds no JSON object: copy it again")
    return contents


class _Fields:
    """The fields of a ``config.json``, and the refusals that name them."""

    def __init__(self, folder: Path, values: Mapping[str, Any]) -> None:
        self._folder = folder
        self._values = values

    def get(self, name: str) -> Any:  # noqa: ANN401 (JSON: the caller checks it)
        """Return the value of a field; None if it is missing."""
        return self._values.get(name)

    def refusal(self, name: str, value: object, reason: str) -> ConfigurationError:
        """Return the error for a field."""
        return self._error(f"{name} is {json.dumps(value)}, {reason}")

    def _error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{KEY} {self._folder}: {CONFIG_FILE}: {problem}")

    def check_class(self) -> str:
        """Return the model type. Raises ConfigurationError unless it is one that our model can be."""
        model_type, classes = self.get("model_type"), self.get("architectures")
        known = f"but only {' and '.join(_CLASSES.values())} can be loaded: give such a model"
        if model_type not in _CLASSES:
            raise self.refusal("model_type", model_type, known)
        if classes is not None and classes != [_CLASSES[model_type]]:
            raise self.refusal("architectures", classes, known)
        return str(model_type)

    def check_values(self, model_type: str) -> None:
        """Raise ConfigurationError for a field with which our model would compute something else."""
        if model_type == "mistral" and "sliding_window" not in self._values:
            raise self._error("sliding_window is missing, and its default is a window: set it to null if there is none")
        for name, value in self._values.items():
            if name in _ONLY and value not in _ONLY[name]:
                allowed = json.dumps(_ONLY[name][0])
                raise self.refusal(name, value, f"but the trainer has {allowed} only: give another model")
            is_known = name in _ONLY or name in _COUNTS or name in _WITHOUT_EFFECT or name in _ELSEWHERE
            if not is_known and value is not None and not name.startswith("_"):
                raise self.refusal(name, value, "a field that the trainer does not know: remove it if it has no effect")

    def count(self, name: str) -> int:
        """Return a positive whole number. Raises ConfigurationError."""
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(name, value, "but must be a positive whole number: correct it")
        return value

    def number(self, name: str) -> float:
        """Return a positive number. Raises ConfigurationError."""
        return self.positive(name, self.get(name))

    def positive(self, name: str, value: object) -> float:
        """Return ``value``, which messages call ``name``. Raises ConfigurationError unless it is a positive number."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.refusal(name, value, "but must be a positive number: correct it")
        return value


def _rope_settings(fields: _Fields) -> dict[str, Any]:
    """Return the settings of the rotary embedding.

    transformers 5 writes one table ``rope_parameters``. Earlier versions write ``rope_theta`` and ``rope_scaling``.
    """
    new, old = fields.get("rope_parameters"), fields.get("rope_scaling")
    if new is not None and old is not None:
        raise fields.refusal("rope_scaling", old, "but there is rope_parameters, too: remove one of them")
    table_name, table = ("rope_scaling", old or {}) if new is None else ("rope_parameters", new)
    if not isinstance(table, dict):
        raise fields.refusal(table_name, table, "but must be a table or null: correct it")
    kind = table.get("rope_type", table.get("type", "default"))
    if kind not in _SCALING_FIELDS:
        known = ", ".join(_SCALING_FIELDS)
        raise fields.refusal(f"{table_name}.rope_type", kind, f"but the trainer knows {known} only: give another model")
    wanted = _SCALING_FIELDS[kind]
    for name in table:
        if name not in (*wanted, "rope_type", "type", "rope_theta"):
            raise fields.refusal(
                f"{table_name}.{name}", table[name], f"which {kind} does not have: remove it if it has no effect"
            )
    theta = table.get("rope_theta", fields.get("rope_theta"))
    settings: dict[str, Any] = {
        "rope_theta": fields.positive("rope_theta", _DEFAULT_THETA if theta is None else theta),
        "rope_scaling": "none" if kind == "default" else kind,
    }
    for name in wanted:
        settings[_SCALING[name]] = fields.positive(f"{table_name}.{name}", table.get(name))
    return settings
