"""Reads the nested JSON of a saved state (see encoding.py) without decoding it."""

from collections.abc import Iterator
from typing import Any, NoReturn

from holdfast_hooks.state.encoding import MAPPING_KINDS, TENSOR_KINDS, decode_state
from holdfast_proto.snapshot import StateTree

Key = str | int
"""Key in a mapping as text, as torch.distributed.checkpoint has it, or position in a list."""


def kind_of(tree: StateTree) -> str:
    """Return the kind of a node: ``list``, ``plain``, or the name of the one key of an object."""
    if isinstance(tree, list):
        return "list"
    return str(next(iter(tree))) if isinstance(tree, dict) else "plain"


def is_mapping(tree: StateTree) -> bool:
    """Whether a node is a mapping of any kind."""
    return kind_of(tree) in MAPPING_KINDS


def items_of(tree: StateTree) -> Iterator[tuple[StateTree, StateTree]]:
    """Yield the pairs of encoded key and node of a mapping."""
    assert isinstance(tree, dict)
    ((_, pairs),) = tree.items()
    yield from pairs


def key_text(key: StateTree) -> str:
    """Return the text of an encoded key in names."""
    return str(decode_state(key, _no_tensor))


def has_tensors(tree: StateTree) -> bool:
    """Whether a node is a tensor or contains one."""
    return any(True for _ in tensors_of(tree))


def tensors_of(tree: StateTree) -> Iterator[Any]:
    """Yield the names or numbers of the tensors in a node, in order."""
    if isinstance(tree, list):
        for node in tree:
            yield from tensors_of(node)
    elif isinstance(tree, dict):
        ((kind, content),) = tree.items()
        if kind in TENSOR_KINDS:
            yield content
        elif kind in MAPPING_KINDS:
            for _, node in content:
                yield from tensors_of(node)
        elif kind == "tuple":
            yield from tensors_of(content)


def with_names(tree: StateTree, names: list[str]) -> StateTree:
    """Return a tree that names its tensors, from one that numbers them."""
    if isinstance(tree, list):
        return [with_names(node, names) for node in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind in TENSOR_KINDS:
        return {kind: names[content]}
    if kind in MAPPING_KINDS:
        return {kind: [[key, with_names(node, names)] for key, node in content]}
    return {kind: with_names(content, names)} if kind == "tuple" else tree


def leaves(tree: StateTree, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], StateTree]]:
    """Yield path and node of each value, as torch.distributed.checkpoint flattens a state.

    It descends into every mapping, and into a list only if that contains a tensor or a mapping.
    """
    if is_mapping(tree):
        for key, node in items_of(tree):
            yield from leaves(node, (*path, key_text(key)))
    elif isinstance(tree, list) and _is_flattened(tree):
        for position, node in enumerate(tree):
            yield from leaves(node, (*path, position))
    else:
        yield path, tree


def _is_flattened(nodes: list[Any]) -> bool:
    return any(
        is_mapping(node) or kind_of(node) in TENSOR_KINDS or (isinstance(node, list) and _is_flattened(node))
        for node in nodes
    )


def _no_tensor(kind: str, _index: int) -> NoReturn:
    raise TypeError(f"a {kind} cannot be a key")
