"""Encodes a state as nested JSON and tensors, and decodes it. No pickle.

None, booleans, integers, strings, finite floats and lists are themselves. Anything else is an object with one key that
names its kind: ``{"dict": [[key, value], ...]}``, ``{"tuple": [...]}``,
``{"float": "nan"}``, ``{"bytes": base64}``, and ``{"tensor": i}``, ``{"dtensor": i}``, ``{"array": i}``
for the i-th tensor.
"""

import base64
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from holdfast_hooks.state import random_states
from holdfast_hooks.state.sharding import is_dtensor, local_part
from holdfast_proto.snapshot import StateTree

if TYPE_CHECKING:
    import torch

_PLAIN = frozenset((type(None), bool, int, str))
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_MAPPING_TYPES: dict[str, type] = {kind: mapping for mapping, kind in _MAPPINGS.items()}
MAPPING_KINDS = frozenset(_MAPPING_TYPES)
SCALARS: dict[str, Callable[[str], Any]] = {"float": float, "bytes": base64.b64decode}
TENSOR_KINDS = ("tensor", "dtensor", "array")


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored: torch modules, optimizers, schedulers, your own classes."""

    def state_dict(self) -> Any:
        """Return the state: nested mappings, lists and tuples of tensors, numbers, strings and bytes."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Load a state that :meth:`state_dict` returned."""


class TensorPart(NamedTuple):
    """A tensor of the state, or this rank's part of it."""

    name: str
    """Path in the state: ``model/layers.0.weight``."""
    source: "torch.Tensor"
    """Tensor in the state; a DTensor if it is spread over ranks."""
    local: "torch.Tensor"
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """An encoded state. The parts are the live tensors: copy them before training continues."""

    tree: StateTree
    parts: tuple[TensorPart, ...]
    empty: tuple[str, ...]
    """Names of containers that are empty, perhaps only until the first step."""


def encode_state(state: Mapping[str, Any]) -> Image:
    """Encode ``state``. Raises TypeError with the name of a value that cannot be encoded."""
    encoder = _Encoder()
    tree = encoder.encode(dict(state), "")
    return Image(tree, tuple(encoder.parts), tuple(encoder.empty))


def decode_state(tree: StateTree, tensor: Callable[[str, Any], Any]) -> Any:
    """Decode a state. ``tensor(kind, i)`` returns the tensor that the tree calls ``i``.

    A tree out of a file must have passed :func:`holdfast_hooks.state.tree.check_tree`.
    """
    if isinstance(tree, list):
        return [decode_state(item, tensor) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind in TENSOR_KINDS:
        return tensor(kind, content)
    if kind in _MAPPING_TYPES:
        pairs = ((decode_state(key, tensor), decode_state(value, tensor)) for key, value in content)
        return _MAPPING_TYPES[kind](dict(pairs))
    if kind == "tuple":
        return tuple(decode_state(item, tensor) for item in content)
    return SCALARS[kind](content)


def reject_unsuitable(state: Mapping[str, Any]) -> None:
    """Raise TypeError if the user's state, or an entry of it, cannot take part in snapshots."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state is of type {type(state).__name__}: give a dict of objects by name")
    for name, stateful in state.items():
        if name == random_states.KEY:
            raise TypeError(f"state {name!r}: the name is taken by the random states; use another")
        if not isinstance(stateful, Stateful):
            kind = type(stateful).__name__
            raise TypeError(f"state {name!r}: {kind} has no state_dict() and load_state_dict()")


class _Encoder:
    def __init__(self) -> None:
        self.parts: list[TensorPart] = []
        self.empty: list[str] = []
        torch = sys.modules.get("torch")
        self._tensor_types = () if torch is None else (torch.Tensor, torch.nn.Parameter)
        self._strided = None if torch is None else torch.strided

    def encode(self, value: Any, name: str) -> Any:
        kind = type(value)
        if kind in self._tensor_types and self._is_plain(value):
            return self._encode_tensor("tensor", value, name)
        if kind in _PLAIN:
            return value
        if kind in _MAPPINGS:
            return {_MAPPINGS[kind]: self._pairs(value, name)}
        if kind in (list, tuple):
            items = self._items(value, name)
            return items if kind is list else {"tuple": items}
        return self._encode_rare(value, name)

    def _encode_rare(self, value: Any, name: str) -> Any:
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        return self._encode_tensor(*_as_tensor(value, name), name)

    def _pairs(self, mapping: Mapping[Any, Any], name: str) -> list[list[Any]]:
        if not mapping:
            self.empty.append(name)
        prefix = f"{name}/" if name else ""
        return [[self._key(key, name), self.encode(value, f"{prefix}{key}")] for key, value in mapping.items()]

    def _items(self, items: list[Any] | tuple[Any, ...], name: str) -> list[Any]:
        if not items:
            self.empty.append(name)
        return [self.encode(item, f"{name}/{index}") for index, item in enumerate(items)]

    def _key(self, key: Any, name: str) -> Any:
        if type(key) in _PLAIN:
            return key
        if type(key) is tuple:
            return {"tuple": [self._key(item, name) for item in key]}
        raise TypeError(f"{name}: a key of type {type(key).__name__} cannot be part of a snapshot; use str or int")

    def _is_plain(self, tensor: "torch.Tensor") -> bool:
        return tensor.layout is self._strided and not tensor.is_quantized and not tensor.is_meta

    def _encode_tensor(self, kind: str, tensor: Any, name: str) -> dict[str, int]:
        if kind == "dtensor":
            part = TensorPart(name, tensor, *local_part(tensor))
        else:
            shape = tuple(tensor.shape)
            part = TensorPart(name, tensor, tensor, shape, (0,) * len(shape))
        self.parts.append(part)
        return {kind: len(self.parts) - 1}


def _as_tensor(value: Any, name: str) -> tuple[str, Any]:
    """Return kind and tensor of a DTensor or a numpy array. Raises TypeError for any other value."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        if is_dtensor(value):
            return "dtensor", value
        if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "biufc":
            # A copy, because torch accepts neither negative strides nor another byte order.
            return "array", torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="C"))
    raise TypeError(
        f"{name}: a value of type {type(value).__name__} cannot be part of a snapshot; "
        "return tensors, numbers, strings, bytes, lists, tuples or dicts from state_dict()"
    )
