"""Putting a snapshot back into the objects it was taken from."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast_hooks import random_states
from holdfast_hooks.errors import ConfigurationError
from holdfast_hooks.layout import dtype_name, place
from holdfast_hooks.sharding import distribute_like, is_dtensor
from holdfast_hooks.state import Image, Part, Stateful, decode_state, encode_state
from holdfast_proto.snapshot import Slot, SnapshotError, TensorEntry

if TYPE_CHECKING:
    import torch

_FIX = "use another run name, or another checkpoint directory"


def restore(path: Path, state: Mapping[str, Stateful], *, rank: int) -> int:
    """Load the snapshot in the slot at ``path`` into ``state``; return the step it was taken after.

    Raises ConfigurationError if it is the snapshot of another model or setup (nothing is changed then),
    SnapshotError if the slot holds no complete snapshot of this rank.
    """
    live_states = {name: stateful.state_dict() for name, stateful in state.items()}
    live = encode_state(live_states)
    with Slot(path) as slot:
        header, meta = slot.header, slot.meta()
        if header.rank != rank:
            raise SnapshotError(f"{path}: holds the state of rank {header.rank}, not of rank {rank}")
        check_fits(meta.tensors, live)
        reader = _Reader(slot, meta.tensors, _Counterparts(state, live))
        saved = decode_state(meta.tree, reader.read)
    _check_names(saved.keys() - {random_states.KEY}, state.keys())
    for name, stateful in state.items():
        _load(name, stateful, _with_metadata(saved[name], live_states[name]))
    random_states.restore(saved[random_states.KEY])
    return header.step


def check_fits(saved: Iterable[TensorEntry], live: Image) -> None:
    """Raise ConfigurationError naming the first tensor that differs between a snapshot and this run.

    What is an empty container here may hold anything there: optimizers have no state before their first step.
    """
    parts = {part.name: part for part in live.parts}
    names = set()
    for entry in saved:
        names.add(entry.name)
        part = parts.get(entry.name)
        if part is None:
            _check_expected(entry, live.empty)
        elif _form(entry) != _form_of_part(part):
            raise _mismatch(entry.name, _describe(*_form(entry)), _describe(*_form_of_part(part)))
    for part in live.parts:
        if part.name not in names:
            raise _mismatch(part.name, "no such tensor", _describe(*_form_of_part(part)))


def _check_expected(entry: TensorEntry, empty: Iterable[str]) -> None:
    containers = (*empty, random_states.KEY)
    if not any(entry.name.startswith(f"{container}/") for container in containers):
        raise _mismatch(entry.name, _describe(*_form(entry)), "no such tensor")


Form = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Data type, shape of this rank's part, shape of the whole."""


def _form(entry: TensorEntry) -> Form:
    return entry.dtype, entry.shape, entry.global_shape


def _form_of_part(part: Part) -> Form:
    return dtype_name(part.local), tuple(part.local.shape), part.global_shape


def _describe(dtype: str, shape: tuple[int, ...], global_shape: tuple[int, ...]) -> str:
    whole = "" if shape == global_shape else f" of {global_shape}"
    return f"{dtype} {shape}{whole}"


def _mismatch(name: str, saved: str, live: str) -> ConfigurationError:
    return ConfigurationError(f"cannot restore {name}: the saved state has {saved}, this run {live}; {_FIX}")


def _check_names(saved: Iterable[str], live: Iterable[str]) -> None:
    if differing := sorted(set(saved) ^ set(live)):
        where = "the saved state" if differing[0] in set(saved) else "this run"
        raise ConfigurationError(f"cannot restore {differing[0]}: only {where} has it; {_FIX}")


class _Counterparts:
    """Finds the live tensor that says on which device a saved one belongs and how it is spread over ranks."""

    def __init__(self, state: Mapping[str, Stateful], live: Image) -> None:
        self._sources = {part.name: part.source for part in live.parts}
        self._parameters = {name: parameters for name, value in state.items() if (parameters := _parameters(value))}

    def named(self, name: str) -> "torch.Tensor | None":
        """Return the live tensor of this name."""
        return self._sources.get(name)

    def sharded_like(self, name: str) -> "torch.Tensor | None":
        """Return the live tensor of this name, or the parameter that an optimizer's state belongs to."""
        if name in self._sources:
            return self._sources[name]
        owner, _, place_in_owner = name.partition("/")
        match place_in_owner.split("/"):
            case ["state", index, *_] if owner in self._parameters and index.isdecimal():
                parameters = self._parameters[owner]
                return parameters[int(index)] if int(index) < len(parameters) else None
        return None


def _parameters(stateful: object) -> "list[torch.Tensor]":
    """Return an optimizer's parameters in the order in which its state numbers them."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(stateful, torch.optim.Optimizer):
        return []
    return [parameter for group in stateful.param_groups for parameter in group["params"]]


class _Reader:
    def __init__(self, slot: Slot, entries: tuple[TensorEntry, ...], counterparts: _Counterparts) -> None:
        self._slot = slot
        self._entries = entries
        self._counterparts = counterparts

    def read(self, kind: str, index: int) -> Any:
        entry = self._entries[index]
        local = _clone(self._slot, entry)
        if kind == "array":
            return local.numpy()
        if kind == "dtensor":
            return self._distribute(local, entry)
        live = self._counterparts.named(entry.name)
        if is_dtensor(live):
            raise _mismatch(entry.name, "a tensor of one rank", "one that is spread over ranks")
        return local if live is None else local.to(live.device)

    def _distribute(self, local: "torch.Tensor", entry: TensorEntry) -> "torch.Tensor":
        like = self._counterparts.sharded_like(entry.name)
        if not is_dtensor(like) or tuple(like.shape) != entry.global_shape:
            raise _mismatch(entry.name, f"a part of {entry.global_shape}", "no tensor that is spread like it")
        return distribute_like(local.to(like.device), like)


def _clone(slot: Slot, entry: TensorEntry) -> "torch.Tensor":
    stored = place(slot, entry)
    if stored is not None:
        return stored.clone()
    import torch

    return torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))


def _with_metadata(saved: Any, live: Any) -> Any:
    """Give a module's state the versions that torch keeps beside it."""
    if hasattr(live, "_metadata"):
        saved._metadata = live._metadata
    return saved


def _load(name: str, stateful: Stateful, saved: Any) -> None:
    try:
        stateful.load_state_dict(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"cannot restore {name}: {error!r}; {_FIX}") from error
