"""Restores the training objects from the snapshot in a slot, bit by bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast_hooks.gpu_work import gpu_of
from holdfast_hooks.restore.consensus import everywhere
from holdfast_hooks.restore.fit import check_names, difference, differences, refusal
from holdfast_hooks.snapshots.slot_layout import as_tensor, check_sizes
from holdfast_hooks.snapshots.slot_reads import fill
from holdfast_hooks.state import bucket_order, own_state, random_states
from holdfast_hooks.state.counterparts import Counterparts, named_parameters
from holdfast_hooks.state.encoding import Image, Stateful, TensorPart, decode_state, encode_state
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.state.sharding import distribute_like, is_dtensor
from holdfast_hooks.state.tree import check_tree
from holdfast_proto.snapshot import Slot, SnapshotError, TensorEntry

if TYPE_CHECKING:
    import torch


def restore(path: Path, state: Mapping[str, Stateful], *, rank: int, own: OwnStates | None = None) -> int:
    """Load the snapshot in the slot at ``path`` into ``state``; return the step after which it was taken.

    Raises ConfigurationError, before it changes anything, if the snapshot is of another model or setup. Raises
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
        try:
            check_tree(meta.tree, [entry.name for entry in meta.tensors])
            check_sizes(meta.tensors)
        except ValueError as error:
            raise SnapshotError(f"{path}: is damaged: {error}") from None
        targets = _Targets(meta.tensors, Counterparts(state, live))
        saved = decode_state(meta.tree, targets.take)
        check_names(saved, state)
        if not isinstance(saved.get(random_states.KEY), dict):
            raise SnapshotError(f"{path}: is damaged: it has no random states")
        orders = saved[random_states.KEY].get(bucket_order.KEY)
        bucket_order.restore(orders, state, lambda answer, group: everywhere(answer, live, group))
        targets.fill(slot)
    load(state, saved, live_states, own)
    return header.step


def fits(path: Path, live: Image, coordinates: Mapping[str, int]) -> bool:
    """Whether the slot at ``path`` holds exactly the parts of the tensors that this rank holds now."""
    offsets = {part.name: part.global_offset for part in live.parts}
    with Slot(path) as slot:
        meta = slot.meta()
    return (
        meta.coordinates == dict(coordinates)
        and not differences(meta.tensors, live)
        and all(offsets.get(entry.name, entry.global_offset) == entry.global_offset for entry in meta.tensors)
    )


def load(
    state: Mapping[str, Stateful], saved: dict[str, Any], live_states: Mapping[str, Any], own: OwnStates | None = None
) -> None:
    """Load a decoded state into its owners, and the random states into their generators. ``own``: parts of the hooks.

    Raises ConfigurationError if an owner does not accept its part.
    """
    check_names(saved, state)
    for name, stateful in state.items():
        try:
            part, live = saved[name], live_states[name]
            if hasattr(live, "_metadata"):  # the versions of a module's state, which torch keeps as an attribute
                part._metadata = live._metadata
            stateful.load_state_dict(part)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise refusal([f"{name}: {error!r}"]) from error
    gpu = gpu_of(parameter for _, _, parameter in named_parameters(state))
    try:
        random_states.restore(saved[random_states.KEY], gpu)
        own_state.restore(own or {}, saved)
    except ValueError as error:
        raise refusal([str(error)]) from error


class _Targets:
    """Provides memory for the tensors of a snapshot: where possible that of the live ones, to copy nothing twice."""

    def __init__(self, entries: tuple[TensorEntry, ...], counterparts: Counterparts) -> None:
        self._entries = entries
        self._counterparts = counterparts
        self._taken: list[tuple[TensorEntry, torch.Tensor]] = []

    def take(self, kind: str, index: int) -> object:
        """Return the tensor or array to load for an entry, not filled yet. Raises ConfigurationError."""
        entry = self._entries[index]
        if kind == "array":
            return self._note(entry, _new(entry)).numpy()
        if kind == "dtensor":
            return self._take_part(entry)
        live = self._counterparts.part(entry.name)
        if live is None:
            return self._note(entry, _new(entry))
        if is_dtensor(live.source):
            raise refusal([difference(entry.name, "a tensor of one rank", "one that is spread over ranks")])
        return self._note(entry, live.local.detach() if _is_own(live) else _new(entry, live.local.device))

    def _take_part(self, entry: TensorEntry) -> "torch.Tensor":
        like = self._counterparts.sharded_like(entry.name)
        if not is_dtensor(like) or tuple(like.shape) != entry.global_shape:
            part = f"a part of {entry.global_shape}"
            raise refusal([difference(entry.name, part, "no tensor that is spread like it")])
        live = self._counterparts.part(entry.name)
        local = live.local.detach() if live is not None and _is_own(live) else _new(entry, like.device)
        return distribute_like(self._note(entry, local), like)

    def _note(self, entry: TensorEntry, target: "torch.Tensor") -> "torch.Tensor":
        self._taken.append((entry, target))
        return target

    def fill(self, slot: Slot) -> None:
        """Fill all tensors that :meth:`take` has returned, from the slot."""
        filled = [(entry, target) for entry, target in self._taken if entry.nbytes]
        fill(slot.path, ((entry, target) for entry, target in filled if target.device.type == "cpu"))
        for entry, target in filled:
            if target.device.type != "cpu":
                target.copy_(as_tensor(slot.buffer, entry, entry.offset))


def _is_own(live: TensorPart) -> bool:
    """Whether a live tensor's elements are in memory in order and without gaps, so that it can be filled in place."""
    return live.local.is_contiguous()


def _new(entry: TensorEntry, device: "torch.device | str" = "cpu") -> "torch.Tensor":
    import torch

    return torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device=device)
