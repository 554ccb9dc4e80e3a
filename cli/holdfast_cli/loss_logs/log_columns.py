"""Finds the columns of a training log by the names that trainers and trackers give them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast_cli.errors import SettingsError

KNOWN = {
    "step": (
        "step",
        "_step",
        "global_step",
        "train/global_step",
        "trainer/global_step",
        "iteration",
        "iter",
        "steps",
        "train_step",
        "train/step",
        "training_step",
        "optimizer_step",
        "update",
        "num_updates",
        "batch",
    ),
    "epoch": ("epoch", "train/epoch"),
    "loss": (
        "loss",
        "train_loss",
        "train/loss",
        "training_loss",
        "lm_loss",
        "train/lm_loss",
        "loss/train",
        "train_loss_step",
        "train_loss_epoch",
        "value",
    ),
    "validation_loss": ("validation_loss", "val_loss", "eval_loss", "eval/loss", "val/loss", "valid_loss"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "grad-norm", "train/gradient_norm"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate", "train/lr"),
    "tokens": ("tokens", "step_tokens", "batch_size", "batch_tokens", "train/batch_size"),
}
"""Quantity -> names of its column, the likeliest first; in lower case, with _ for blanks and hyphens."""

RUN_MARK = " - "
"""W&B puts it between the name of a run and that of its column, when it exports several runs next to each other."""

_LOSS_LIKE = re.compile(r"(^|[/_.])loss$")
_EMPTY = frozenset({"", "null", "none", "n/a", "na"})
_RULE = re.compile("[-:]+")
"""A cell of the line under the names in a table of Markdown; or one hyphen for no number."""


@dataclass(frozen=True)
class LogColumns:
    """Names of the columns that are read; "" for a quantity that the log does not have."""

    loss: str
    step: str = ""
    epoch: str = ""
    validation_loss: str = ""
    grad_norm: str = ""
    learning_rate: str = ""
    tokens: str = ""

    def named(self) -> dict[str, str]:
        """Return the quantity -> column of those that are there."""
        return {quantity: column for quantity, column in vars(self).items() if column}


def is_empty(cell: object) -> bool:
    """Whether a cell holds no number, and says so in a usual way."""
    if isinstance(cell, str):
        text = cell.strip().lower()
        return text in _EMPTY or _RULE.fullmatch(text) is not None
    return cell is None


def names_a_loss(names: Sequence[str], given: str | None) -> bool:
    """Whether one of ``names`` is that of a loss, or the one that the user gives."""
    return given in names or bool(_first(names, KNOWN["loss"]) or _like_losses(names))


def find_columns(
    names: Sequence[str], head: Sequence[Sequence[object]], *, loss: str | None, step: str | None, path: str
) -> LogColumns:
    """Return which of ``names`` hold what. ``head``: first rows. ``loss`` and ``step``: names that the user gives.

    The step is the name that most rows with a loss have. If none has one, whole epochs that only rise are the steps.
    Raises SettingsError, which names the file and its columns.
    """
    for given, flag in ((loss, "--loss-column"), (step, "--step-column")):
        if given is not None and given not in names:
            raise SettingsError(f"{path}: row 1 has no column {given!r}: {flag} takes one of {listed(names)}")
    found = {quantity: _first(names, known) for quantity, known in KNOWN.items()}
    found["loss"] = loss or found["loss"] or _only_loss(names, path)
    if not found["loss"]:
        raise SettingsError(
            f"{path}: row 1 names no known column of a loss: name it with --loss-column, one of {listed(names)}"
        )
    found["step"] = step or _step_of(names, found["loss"], head) or _rising(names, found, head)
    if found["step"] == found["epoch"]:
        found["epoch"] = ""
    taken = {found["loss"]} if loss else set()
    others = {quantity: "" if name in taken and quantity != "loss" else name for quantity, name in found.items()}
    return LogColumns(**others)


def _first(names: Sequence[str], known: Sequence[str]) -> str:
    labels = {plain(name): name for name in reversed(names)}
    return next((labels[plain(one)] for one in known if plain(one) in labels), "")


def _like_losses(names: Sequence[str]) -> list[str]:
    """Return the names that end in "loss", such as `run-7 - train/loss` of a table of W&B, without validation."""
    validation = {plain(name) for name in KNOWN["validation_loss"]}
    kinds = {name: plain(name.rpartition(RUN_MARK)[2]) for name in names}
    return [name for name, kind in kinds.items() if _LOSS_LIKE.search(kind) and kind not in validation]


def _only_loss(names: Sequence[str], path: str) -> str:
    like = _like_losses(names)
    if len({name.rpartition(RUN_MARK)[0] for name in like}) > 1:
        raise SettingsError(f"{path}: row 1 has losses of several runs: choose --loss-column, one of {listed(like)}")
    return like[0] if len(like) == 1 else ""


def _step_of(names: Sequence[str], loss: str, head: Sequence[Sequence[object]]) -> str:
    known = [name for name in (_first(names, [one]) for one in KNOWN["step"]) if name]
    with_loss = _with(head, names.index(loss))
    times = {name: len(_with(with_loss, names.index(name))) for name in known}
    best = max(known, key=lambda name: times[name], default="")
    return best if best and (times[best] or not with_loss) else ""


def _rising(names: Sequence[str], found: dict[str, str], head: Sequence[Sequence[object]]) -> str:
    """Return the column of the epoch if the rows with a loss count whole epochs; else ""."""
    if not found["epoch"]:
        return ""
    place = names.index(found["epoch"])
    epochs = [str(cells[place]).strip() for cells in _with(_with(head, names.index(found["loss"])), place)]
    counts = [int(epoch) for epoch in epochs if epoch.isdecimal() and len(epoch) < 16]
    is_rising = all(one < other for one, other in pairwise(counts))
    return found["epoch"] if counts and len(counts) == len(epochs) and is_rising else ""


def _with(rows: Sequence[Sequence[object]], place: int) -> list[Sequence[object]]:
    return [cells for cells in rows if place < len(cells) and not is_empty(cells[place])]


def plain(name: str) -> str:
    """Return a name in lower case, with _ for blanks and hyphens."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def listed(names: Sequence[str]) -> str:
    """Return the first names for a message."""
    shown = ", ".join(repr(name[:60]) for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
