"""Where the bytes of a tensor are, and which part of the training state it is."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast_checkpoint.guard.finite_values import is_floating, tensor_bytes

_OPTIMIZER_WORDS = (
    "optim",
    "optimizer",
    "optimizers",
    "optimizer_states",
    "optimizer_state_dict",
    "chained_optimizers",
)
_PARAMETERS = (".weight", ".bias")
"""Ends of names that only parameters have: ``lm_head.weight`` stands next to ``model.layers`` in many models."""
_MODEL_WORDS = ("state_dict", "model", "module", "model_state_dict", "app")
_ZERO_3_WEIGHTS = "fp32_flat_groups"
"""Where ZeRO 3 keeps the weights: next to the optimizer's state. The parts of its model are empty."""
_OPTIMIZER_FILES = ("optim", "distrib_optim")
_OTHER_FILES = ("scheduler", "rng_state", "scaler", "training_args", "random_states", "custom_checkpoint")


class Role(StrEnum):
    """Part of the training state."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor, or one chunk of it, in a file of a checkpoint."""

    name: str
    """Name within the checkpoint, with the offset of a chunk if it is one."""
    role: Role
    dtype: str
    """Name as torch prints it; empty if it is unknown."""
    shape: tuple[int, ...]
    path: Path
    offset: int
    """First byte in the file."""
    nbytes: int
    """Bytes of the tensor, or of its archive."""
    is_archived: bool = False
    """Whether the bytes are a whole torch archive that holds the tensor alone, as DCP writes it."""
    is_readable: bool = True
    """Whether the bytes are elements of the dtype, without gaps and not compressed."""

    @property
    def content_bytes(self) -> int:
        """Bytes of its elements; of an unknown dtype, those in the file."""
        return tensor_bytes(self.dtype, self.shape) if self.dtype else self.nbytes


def roles(names: dict[str, str], file_name: str = "") -> dict[str, Role]:
    """Return the role of each tensor of a file. ``names``: path of the tensor, with dots -> its dtype.

    A floating tensor is a weight if it is not the optimizer's. If a file has a part for the model, what is beside that
    part and no parameter by its name is something else, such as a best loss or a schedule.
    """
    stem = file_name.lower()
    if stem.startswith(_OTHER_FILES):
        return dict.fromkeys(names, Role.OTHER)
    if stem.startswith(_OPTIMIZER_FILES):
        return dict.fromkeys(names, Role.OPTIMIZER)
    found = {name: _role(name, dtype) for name, dtype in names.items()}
    models = {name for name, role in found.items() if role is Role.WEIGHTS and _is_model(name)}
    if models:
        weights = {name for name, role in found.items() if role is Role.WEIGHTS}
        found.update((name, Role.OTHER) for name in weights - models if not name.endswith(_PARAMETERS))
    return found


def _role(name: str, dtype: str) -> Role:
    words = name.split(".", 3)[:3]
    if _ZERO_3_WEIGHTS in words:
        return Role.WEIGHTS
    if any(word in _OPTIMIZER_WORDS for word in words) or words[0].startswith("optim"):
        return Role.OPTIMIZER
    return Role.WEIGHTS if is_floating(dtype) else Role.OTHER


def _is_model(name: str) -> bool:
    first = name.partition(".")[0]
    return first in _MODEL_WORDS or (first.startswith("model") and first[5:].isdigit())
