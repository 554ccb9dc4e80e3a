"""Merges the trees that the ranks of another layout saved into one tree for this rank."""

from collections.abc import Callable, Sequence

from holdfast_hooks.state.tree import has_tensors, is_mapping, items_of, key_text, kind_of
from holdfast_proto.snapshot import StateTree

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
