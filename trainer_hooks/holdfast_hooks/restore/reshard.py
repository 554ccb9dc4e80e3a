"""Loads a checkpoint that a world of another layout wrote, and merges what its ranks saved."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_hooks.restore.consensus import anywhere
from holdfast_hooks.restore.fit import check_names, difference, refusal
from holdfast_hooks.restore.saved_state import SavedState, SavedTensor
from holdfast_hooks.restore.slot_restore import load
from holdfast_hooks.snapshots.slot_layout import dtype_name
from holdfast_hooks.state import random_states
from holdfast_hooks.state.counterparts import Counterparts
from holdfast_hooks.state.encoding import Image, Stateful, TensorPart, decode_state, encode_state
from holdfast_hooks.state.own_state import OwnStates
from holdfast_hooks.state.sharding import distribute_like, is_dtensor
from holdfast_hooks.state.tree import has_tensors, is_mapping, items_of, key_text, kind_of, tensors_of, with_names
from holdfast_proto.snapshot import StateTree

if TYPE_CHECKING:
    import torch


def reshard(directory: Path, state: Mapping[str, Stateful], *, rank: int, own: OwnStates | None = None) -> int:
    """Load the checkpoint in ``directory`` into ``state``, whatever layout wrote it; return its step.

    All ranks of the world must call it. A tensor that is spread over ranks is put together from the saved parts that
    overlap this rank's part. Anything else comes from rank ``rank`` modulo the number of writers, or from the lowest
    rank that has it. Raises CheckpointUnreadable. Raises ConfigurationError, before it changes anything, if it is a
    checkpoint of another model.
    """
    live_states = {name: stateful.state_dict() for name, stateful in state.items()}
    live = encode_state({**live_states, random_states.KEY: {}})
    saved = SavedState.open(directory, rank)
    check_names({key_text(key) for tree in saved.trees for key, _ in items_of(tree)}, state)
    counterparts = Counterparts(state, live)
    live_tree = with_names(live.tree, [part.name for part in live.parts])
    tree = merge(live_tree, saved.trees, counterparts.wants)
    _check(live, saved, tree, counterparts)
    targets = {name: _target(saved.tensors[name], counterparts) for name in tensors_of(tree)}
    _fill(saved, targets)

    def tensor(kind: str, name: str) -> object:
        return targets[name].numpy() if kind == "array" else targets[name]

    load(state, decode_state(tree, tensor), live_states, own)
    return saved.step


def _check(live: Image, saved: SavedState, tree: StateTree, counterparts: Counterparts) -> None:
    """Raise ConfigurationError with the tensors that differ, and those that are saved and that no rank wants."""
    wanted = set(tensors_of(tree))
    found = [
        difference(part.name, "no such tensor", _describe(part))
        for part in live.parts
        if part.name not in saved.tensors
    ]
    found += [text for name in sorted(wanted) if (text := _mismatch(saved.tensors[name], counterparts))]
    names = [name for name in sorted(saved.tensors) if not name.startswith(f"{random_states.KEY}/")]
    held = anywhere([name in wanted for name in names], live)
    if held is not None:
        found += [
            difference(name, saved.tensors[name], "no such tensor")
            for name, is_held in zip(names, held, strict=True)
            if not is_held
        ]
    if found:
        raise refusal(found)
    for name in wanted:
        # Replicas of a parameter have the same optimizer state. Other values under the same name can only belong to
        # another parameter, such as one of another pipeline stage.
        is_optimizer_state = counterparts.part(name) is None and counterparts.sharded_like(name) is not None
        saved.tensors[name].check(must_agree=is_optimizer_state)


def _mismatch(saved: SavedTensor, counterparts: Counterparts) -> str:
    part, like = counterparts.part(saved.name), counterparts.sharded_like(saved.name)
    if part is not None:
        same = (saved.dtype, saved.global_shape) == (dtype_name(part.local), part.global_shape)
        return "" if same else difference(saved.name, saved, _describe(part))
    if saved.is_spread and (like is None or tuple(like.shape) != saved.global_shape):
        return difference(saved.name, saved, "no tensor that is spread like it")
    return ""


def _describe(part: TensorPart) -> str:
    return f"{dtype_name(part.local)} {part.global_shape}"


def _target(saved: SavedTensor, counterparts: Counterparts) -> "torch.Tensor":
    """Return memory for this rank's part of a tensor, spread like the live tensor or the optimizer's parameter."""
    import torch

    dtype = getattr(torch, saved.dtype)
    like = counterparts.sharded_like(saved.name)
    if like is None or tuple(like.shape) != saved.global_shape:
        return torch.empty(saved.global_shape, dtype=dtype)
    with torch.no_grad():
        if is_dtensor(like):
            return distribute_like(torch.empty_like(like.to_local(), dtype=dtype), like)
        return torch.empty_like(like, dtype=dtype, requires_grad=False)


def _fill(saved: SavedState, targets: "Mapping[str, torch.Tensor]") -> None:
    """Read the saved parts that overlap the targets. Every rank reads for itself."""
    if not targets:
        return
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    from holdfast_hooks.restore.dcp.dcp_reader import SavedStateReader

    reader = SavedStateReader(saved.directory, saved.tensors)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(targets), reader.read_metadata())
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner)


Wants = Callable[[str, str], bool]
"""Function of an empty container's name and a key in it: whether the saved value belongs to this rank."""


def merge(live: StateTree, saved: Sequence[StateTree], wants: Wants, name: str = "") -> StateTree:
    """Return the tree to load. Tensors are named in all trees, and ``saved`` has the preferred rank's tree first.

    There are three cases at each place. Where this rank has tensors, the result has the keys of the live tree: the
    others belong to other ranks. Where it has an empty mapping, the result joins the contents of all ranks, as far as
    this rank wants them. Anything else comes from the preferred rank.
    """
    mappings = [tree for tree in saved if is_mapping(tree)]
    if is_mapping(live) and mappings:
        return _merge_mappings(live, mappings, wants, name)
    if isinstance(live, list) and has_tensors(live):
        lists = [tree for tree in saved if isinstance(tree, list) and len(tree) == len(live)]
        if lists:
            return [merge(node, [tree[i] for tree in lists], wants, f"{name}/{i}") for i, node in enumerate(live)]
    return saved[0]


def _merge_mappings(live: StateTree, saved: Sequence[StateTree], wants: Wants, name: str) -> StateTree:
    here, there = _by_text(live), [_by_text(tree) for tree in saved]
    if not here:
        keys = [text for text in dict.fromkeys(text for tree in there for text in tree) if wants(name, text)]
    elif has_tensors(live):
        keys = list(here)
    else:
        keys = list({**there[0], **here})
    pairs: list[list[StateTree]] = []
    for text in keys:
        found = [tree[text] for tree in there if text in tree]
        if found:
            nodes = [node for _, node in found]
            path = f"{name}/{text}" if name else text
            pairs.append([found[0][0], merge(here[text][1], nodes, wants, path) if text in here else nodes[0]])
    return {kind_of(live): pairs}


def _by_text(mapping: StateTree) -> dict[str, tuple[StateTree, StateTree]]:
    """Return pairs of encoded key and node, by the key's text."""
    return {key_text(key): (key, node) for key, node in items_of(mapping)}
