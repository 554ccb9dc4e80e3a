"""The JSON nesting of a saved state (see state.py), looked at without decoding it."""

from collections.abc import Iterator
from typing import Any

from holdfast_hooks.state.encoding import MAPPING_KINDS, TENSOR_KINDS, decode_state

Key = str | int
"""Of a mapping as torch.distributed.checkpoint has it, text; of a list, the position."""


def kind_of(tree: Any) -> str:
    """Return the kind of a node: ``list``, ``plain``, or the name of the one key of an object."""
    if isinstance(tree, list):
        return "list"
    return str(next(iter(tree))) if isinstance(tree, dict) else "plain"


def is_mapping(tree: Any) -> bool:
    """Whether a node stands for a dict of any kind."""
    return kind_of(tree) in MAPPING_KINDS


def items_of(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of encoded key and node of a mapping."""
    ((_, pairs),) = tree.items()
    yield from pairs


def key_text(key: Any) -> str:
    """Return an encoded key as it appears in names."""
    return str(decode_state(key, _no_tensor))


def has_tensors(tree: Any) -> bool:
    """Whether there is a tensor below or at a node."""
    kind = kind_of(tree)
    if kind in TENSOR_KINDS:
        return True
    if kind in MAPPING_KINDS:
        return any(has_tensors(node) for _, node in items_of(tree))
    children = tree if kind == "list" else tree["tuple"] if kind == "tuple" else []
    return any(has_tensors(node) for node in children)


def tensors_of(tree: Any) -> Iterator[Any]:
    """Yield what names the tensors at or below a node, in order."""
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


def with_names(tree: Any, names: list[str]) -> Any:
    """Return a tree in which tensors are named and no longer numbered."""
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


def leaves(tree: Any, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yield path and node of what torch.distributed.checkpoint takes for one value.

    As its flattening does: mappings are always gone into, lists only if a tensor or a mapping is in them.
    """
    if is_mapping(tree):
        for key, node in items_of(tree):
            yield from leaves(node, (*path, key_text(key)))
    elif isinstance(tree, list) and _is_gone_into(tree):
        for position, node in enumerate(tree):
            yield from leaves(node, (*path, position))
    else:
        yield path, tree


def _is_gone_into(nodes: list[Any]) -> bool:
    return any(
        is_mapping(node) or kind_of(node) in TENSOR_KINDS or (isinstance(node, list) and _is_gone_into(node))
        for node in nodes
    )


def _no_tensor(kind: str, index: int) -> Any:
    raise TypeError(f"a {kind} cannot be a key")
