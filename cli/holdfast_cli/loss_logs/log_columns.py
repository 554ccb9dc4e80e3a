"""Finds the columns of a training log by the names that trainers and trackers give them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_cli.errors import ConfigurationError

_KNOWN = {
    "step": ("step", "_step", "global_step", "train/global_step", "trainer/global_step", "iteration", "iter", "steps"),
    "loss": (
        "loss",
        "train_loss",
        "train/loss",
        "training_loss",
        "lm_loss",
        "train/lm_loss",
        "value",
    ),
    "validation_loss": ("validation_loss", "val_loss", "eval_loss", "eval/loss", "val/loss", "valid_loss"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "grad-norm", "train/gradient_norm"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate", "train/lr"),
    "tokens": ("tokens", "step_tokens", "batch_size", "batch_tokens", "train/batch_size"),
}
"""Quantity -> names of its column, the likeliest first; in lower case, with _ for blanks and hyphens."""

_LOSS_LIKE = re.compile(r"(^|[/_.])loss$")


@dataclass(frozen=True)
class LogColumns:
    """Names of the columns that are read; "" for a quantity that the log does not have."""

    loss: str
    step: str = ""
    validation_loss: str = ""
    grad_norm: str = ""
    learning_rate: str = ""
    tokens: str = ""

    def named(self) -> dict[str, str]:
        """Return the quantity -> column of those that are there."""
        return {quantity: column for quantity, column in vars(self).items() if column}


def find_columns(names: Sequence[str], *, loss: str | None, step: str | None, path: str) -> LogColumns:
    """Return which of ``names`` hold what. ``loss`` and ``step``: names that the user gives.

    Raises ConfigurationError, which names the file and its columns.
    """
    for given, flag in ((loss, "--loss-column"), (step, "--step-column")):
        if given is not None and given not in names:
            raise ConfigurationError(f"{path}: row 1 has no column {given!r}: {flag} takes one of {_listed(names)}")
    found = {quantity: _first(names, known) for quantity, known in _KNOWN.items()}
    found["loss"] = loss or found["loss"] or _only_loss(names)
    found["step"] = step or found["step"]
    if not found["loss"]:
        raise ConfigurationError(
            f"{path}: row 1 names no known column of a loss: name it with --loss-column, one of {_listed(names)}"
        )
    taken = {found["loss"]} if loss else set()
    others = {quantity: "" if name in taken and quantity != "loss" else name for quantity, name in found.items()}
    return LogColumns(**others)


def _first(names: Sequence[str], known: Sequence[str]) -> str:
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[_plain(one)] for one in known if _plain(one) in plain), "")


def _only_loss(names: Sequence[str]) -> str:
    """Return the only name that ends in "loss", such as `run-7 - train/loss` of a table of W&B; else ""."""
    validation = {_plain(name) for name in _KNOWN["validation_loss"]}
    like = [name for name in names if _LOSS_LIKE.search(_plain(name.rpartition(" - ")[2]))]
    like = [name for name in like if _plain(name.rpartition(" - ")[2]) not in validation]
    return like[0] if len(like) == 1 else ""


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:60]) for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
