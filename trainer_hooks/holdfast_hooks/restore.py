"""Putting a snapshot back into the objects it was taken from."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast_hooks import random_states
from holdfast_hooks.counterparts import Counterparts
from holdfast_hooks.fit import check_names, difference, differences, refusal
from holdfast_hooks.layout import place
from holdfast_hooks.sharding import distribute_like, is_dtensor
from holdfast_hooks.state import Image, Stateful, decode_state, encode_state
from holdfast_proto.snapshot import Slot, SnapshotError, TensorEntry

if TYPE_CHECKING:
    import torch


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
        if found := differences(meta.tensors, live):
            raise refusal(found)
        reader = _Reader(slot, meta.tensors, Counterparts(state, live))
        saved = decode_state(meta.tree, reader.read)
    load(state, saved, live_states)
    return header.step


def fits(path: Path, live: Image, coordinates: Mapping[str, int]) -> bool:
    """Whether the slot at ``path`` holds the very part of every tensor that this rank has now."""
    offsets = {part.name: part.global_offset for part in live.parts}
    with Slot(path) as slot:
        meta = slot.meta()
    return (
        meta.coordinates == dict(coordinates)
        and not differences(meta.tensors, live)
        and all(offsets.get(entry.name, entry.global_offset) == entry.global_offset for entry in meta.tensors)
    )


def load(state: Mapping[str, Stateful], saved: dict[str, Any], live_states: Mapping[str, Any]) -> None:
    """Hand a decoded state to its owners, and the random states to their generators.

    Raises ConfigurationError if it is not a state of theirs.
    """
    check_names(saved, state)
    for name, stateful in state.items():
        try:
            stateful.load_state_dict(_with_metadata(saved[name], live_states[name]))
        except (KeyError, TypeError, ValueError) as error:
            raise refusal([f"{name}: {error!r}"]) from error
    random_states.restore(saved[random_states.KEY])


class _Reader:
    def __init__(self, slot: Slot, entries: tuple[TensorEntry, ...], counterparts: Counterparts) -> None:
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
        live = self._counterparts.part(entry.name)
        if live is None:
            return local
        if is_dtensor(live.source):
            raise refusal([difference(entry.name, "a tensor of one rank", "one that is spread over ranks")])
        return local.to(live.local.device)

    def _distribute(self, local: "torch.Tensor", entry: TensorEntry) -> "torch.Tensor":
        like = self._counterparts.sharded_like(entry.name)
        if not is_dtensor(like) or tuple(like.shape) != entry.global_shape:
            part = f"a part of {entry.global_shape}"
            raise refusal([difference(entry.name, part, "no tensor that is spread like it")])
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
