"""Compares a saved state with this run's model, and words the differences."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.snapshots.slot_layout import dtype_name
from holdfast_hooks.state import random_states
from holdfast_hooks.state.encoding import Image, TensorPart
from holdfast_proto.snapshot import TensorEntry

_FIX = "use another run name, or another checkpoint directory"
_LISTED = 10


class _Form(NamedTuple):
    """Properties that two tensors must share for one to replace the other."""

    dtype: str
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]

    def __str__(self) -> str:
        whole = "" if self.shape == self.global_shape else f" of {self.global_shape}"
        return f"{self.dtype} {self.shape}{whole}"


def _form_of_entry(entry: TensorEntry) -> _Form:
    return _Form(entry.dtype, entry.shape, entry.global_shape)


def _form_of_part(part: TensorPart) -> _Form:
    return _Form(dtype_name(part.local), tuple(part.local.shape), part.global_shape)


def difference(name: str, saved: object, live: object) -> str:
    """Return one difference, worded for the user."""
    return f"{name}: the saved state has {saved}, this run {live}"


def refusal(differences: Sequence[str]) -> ConfigurationError:
    """Return an error that lists the first ten differences."""
    listed = "; ".join(differences[:_LISTED])
    more = f"; and {len(differences) - _LISTED} more" if len(differences) > _LISTED else ""
    return ConfigurationError(f"cannot restore {listed}{more}; {_FIX}")


def check_names(saved: Iterable[str], live: Iterable[str]) -> None:
    """Raise ConfigurationError if only one of two states has an entry of some name."""
    saved_names, live_names = set(saved) - {random_states.KEY}, set(live)
    if differing := sorted(saved_names ^ live_names):
        where = {name: "the saved state" if name in saved_names else "this run" for name in differing}
        raise refusal([f"{name}: only {where[name]} has it" for name in differing])


def differences(saved: Iterable[TensorEntry], live: Image) -> list[str]:
    """Return the differences between a rank's snapshot and its live state, in words.

    A container that is empty in the live state may hold anything in the snapshot: optimizers have no state before their
    first step.
    """
    parts = {part.name: part for part in live.parts}
    containers = tuple(f"{container}/" for container in (*live.empty, random_states.KEY))
    names, found = set(), []
    for entry in saved:
        names.add(entry.name)
        part = parts.get(entry.name)
        if part is not None and _form_of_entry(entry) != _form_of_part(part):
            found.append(difference(entry.name, _form_of_entry(entry), _form_of_part(part)))
        elif part is None and not entry.name.startswith(containers):
            found.append(difference(entry.name, _form_of_entry(entry), "no such tensor"))
    missing = [part for part in live.parts if part.name not in names]
    return found + [difference(part.name, "no such tensor", _form_of_part(part)) for part in missing]
