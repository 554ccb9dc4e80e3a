"""Reads the nested JSON of a saved state (see encoding.py) without decoding it."""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from holdfast_hooks.state.encoding import MAPPING_KINDS, SCALARS, TENSOR_KINDS, decode_state
from holdfast_proto.limits import is_count
from holdfast_proto.snapshot import StateTree

_MOST_LEVELS = 100
"""Deepest nesting of a state. A walk takes a few of Python's 1,000 frames for each level."""

Key = str | int
"""Key in a mapping as text, as torch.distributed.checkpoint has it, or position in a list."""


def kind_of(tree: StateTree) -> str:
    """Return the kind of a node: ``list``, ``plain``, or the name of the one key of an object; "" if that is none."""
    if isinstance(tree, list):
        return "list"
    if not isinstance(tree, dict):
        return "plain"
    return str(next(iter(tree))) if len(tree) == 1 else ""


def check_tree(tree: object, tensors: Sequence[str]) -> None:
    """Raise ValueError unless ``tree`` is what encode_state() made of a mapping with these tensors.

    It comes out of a file, which may be damaged. A tree that has passed is decoded without an error.
    """
    if not isinstance(tree, dict) or not is_mapping(tree):
        raise ValueError("its state is no mapping")
    left: list[tuple[Any, str, int]] = [(tree, "", 0)]
    found = 0
    while left:
        node, name, level = left.pop()
        if level > _MOST_LEVELS:
            raise ValueError(f"its state has more than {_MOST_LEVELS} levels")
        if kind_of(node) in TENSOR_KINDS:
            (number,) = node.values()
            if not is_count(number) or number >= len(tensors) or tensors[number] != name:
                raise ValueError(f"its state has another tensor in the place of {name[:80]!r}")
            found += 1
        else:
            prefix = f"{name}/" if name or not is_mapping(node) else ""  # as the encoder names them
            left += [(part, f"{prefix}{key}", level + 1) for key, part in _parts(node)]
    if found != len(tensors):
        raise ValueError(f"its state has {found} of {len(tensors)} tensors")


def _parts(node: StateTree) -> list[tuple[Key, Any]]:
    """Return the nodes within a node, with their keys. Raises ValueError if it is none."""
    kind = kind_of(node)
    content = node.get(kind) if isinstance(node, dict) else node
    if kind == "plain":
        return []
    if kind in SCALARS and isinstance(content, str):
        SCALARS[kind](content)  # raises ValueError
        return []
    if kind in ("list", "tuple") and isinstance(content, list):
        return list(enumerate(content))
    if kind in MAPPING_KINDS and isinstance(content, list) and all(map(_is_pair, content)):
        return [(key_text(key), value) for key, value in content]
    raise ValueError(f"its state has a part of the unknown kind {kind[:20]!r}")


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and _is_key(pair[0])


def _is_key(key: object, level: int = 0) -> bool:
    """Return whether a node is a key: a plain value, or a tuple of keys."""
    if not isinstance(key, list | dict):
        return True
    items = key.get("tuple") if isinstance(key, dict) and len(key) == 1 else None
    return isinstance(items, list) and level < _MOST_LEVELS and all(_is_key(item, level + 1) for item in items)


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
