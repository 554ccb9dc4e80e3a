"""Reads pickles of torch without running anything of them.

A pickle names classes and functions, and tells Python to call them. Here no such name is ever imported. Each becomes an
:class:`InertObject` that only collects what it would have been called with. A few are understood: tensors, their
storages, sizes and mappings. ``pickled_names`` says which calls no checkpoint needs. They are refused with an error.
"""

import math
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from holdfast_checkpoint.guard.damage import DamagedFileError, UnsafePickleError, printable
from holdfast_checkpoint.guard.pickled_names import (
    is_foreign,
    iterates,
    may_be_called,
    may_be_made,
    may_be_named,
    modern,
)

LARGEST_PICKLE_BYTES = 1 << 30
"""A larger pickle is refused: the guard must not fill the memory of a node that trains."""
_ROOM_BYTES, _BYTES_PER_BYTE = 256 << 20, 64
"""Memory that reading a pickle may take: this much, and so many times its own size."""
_MOST_NAMES = 4096
_MOST_OBJECTS = 20_000_000

_HIDDEN = ("__class__", "__setstate__", "append", "extend", "add")
"""What opcodes look up on an object. An attribute of that name decides what they call."""
_STORAGE_TYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip


class _StandIn(type):
    """Class of the stand-ins, so that a call differs from the creation of an object."""

    module: str
    name: str

    def __call__(cls, *arguments: Any) -> Any:
        """Return an inert object in place of the result. Raises UnsafePickleError if the call would run code."""
        if not may_be_called(cls.module, cls.name, arguments):
            raise _unsafe("calls", cls.path)
        _check_arguments(arguments, iterates=iterates(cls.module, cls.name))
        return super().__call__(*arguments)

    @property
    def path(cls) -> str:
        """Module and name of the class or function."""
        return f"{cls.module}.{cls.name}"


class InertObject(metaclass=_StandIn):
    """Stands for an object of a class that is never imported."""

    __slots__ = ("parts",)
    parts: list[Any]
    """What it was called with, and what was added to it."""

    def __new__(cls, *args: Any, **named: Any) -> "InertObject":
        """Keep the arguments. Raises UnsafePickleError if code would run."""
        if not may_be_made(cls.module, cls.name):
            raise _unsafe("calls", cls.path)
        made = object.__new__(cls)
        made.parts = [args, named] if named else [args]
        return made

    def __setstate__(self, state: Any) -> None:
        _check_state(state)
        self.parts.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append({key: value} if isinstance(key, str) else value)

    def __call__(self, *_: Any) -> None:
        """Refuse the call: no checkpoint calls what a call has returned."""
        raise _unsafe("calls what it gets from", type(self).path)

    def append(self, item: Any) -> None:
        """Keep an item."""
        self.parts.append(item)

    add = append
    extend = append

    @property
    def state(self) -> Any:
        """What the object's state was set to last, or its arguments."""
        return self.parts[-1]


class InertMapping(dict[Any, Any]):
    """Stands for an OrderedDict or a defaultdict."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()
        _check_arguments(arguments, iterates=True)

    def __setstate__(self, state: Any) -> None:
        _check_state(state)


class InertSize(tuple[Any, ...]):
    """Stands for a torch.Size."""

    def __new__(cls, value: Any = ()) -> "InertSize":
        """Take a tuple or a list."""
        _check_arguments((value,), iterates=True)
        return super().__new__(cls, value if isinstance(value, tuple | list) else ())


@dataclass(frozen=True, slots=True)
class InertStorage:
    """A storage: bytes of a record ``data/KEY``."""

    key: str
    dtype: str
    """Empty if the storage has no type of its own."""


@dataclass(frozen=True, slots=True)
class InertTensor:
    """A tensor: a view of a storage."""

    storage: InertStorage
    dtype: str
    """Name as torch prints it, without ``torch.``."""
    offset: int
    """Its first element in the storage."""
    shape: tuple[int, ...]
    is_dense: bool
    """Whether its elements follow each other without gaps, in any order."""


def load_inert(data: bytes, modules: set[str] | None = None) -> Any:
    """Return what a pickle describes. ``modules`` takes the modules of classes of other packages.

    Raises DamagedFileError if it is cut off or too large, UnsafePickleError if it would run code.
    """
    if len(data) > LARGEST_PICKLE_BYTES:
        raise DamagedFileError(f"its pickle has {len(data)} bytes, and {LARGEST_PICKLE_BYTES} is the most that is read")
    return load_pickles(BytesIO(data), len(data), 1, modules)[0]


def load_pickles(file: BinaryIO, size: int, count: int, modules: set[str] | None) -> list[Any]:
    """Return what the next ``count`` pickles of a file of ``size`` bytes describe. Raises as :func:`load_inert`."""
    try:
        with _bounded_memory(_ROOM_BYTES + _BYTES_PER_BYTE * min(size, LARGEST_PICKLE_BYTES)):
            return [_InertUnpickler(file, modules).load() for _ in range(count)]
    except (DamagedFileError, OSError):
        raise
    except MemoryError:
        raise DamagedFileError("its pickle asks for more memory than there is") from None
    except Exception:  # noqa: BLE001 - a damaged pickle raises almost any exception, some without a text
        raise DamagedFileError("its pickle is cut off or damaged") from None


@contextmanager
def _bounded_memory(room_bytes: int) -> Iterator[None]:
    """Let the process grow by ``room_bytes`` only: a few damaged bytes can make Python ask for tens of gigabytes.

    It then raises MemoryError. The limit holds for all threads of the process, for the moment.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = [each for each in (soft, used + room_bytes) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def dtype_of(value: Any) -> str:
    """Return the dtype that a name such as ``torch.float32`` stands for; empty if it is none."""
    return value.name if isinstance(value, _StandIn) and value.module == "torch" else ""


def tensors_in(root: Any) -> Iterator[tuple[str, InertTensor]]:
    """Yield each tensor below ``root`` with its path, such as ``state_dict.layer.weight``. Circles are no harm."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, InertTensor):
            yield path, value
            continue
        if not isinstance(value, dict | list | tuple | InertObject) or id(value) in seen:
            continue
        seen.add(id(value))
        if len(seen) > _MOST_OBJECTS:
            raise DamagedFileError(f"its pickle has more than {_MOST_OBJECTS} objects")
        waiting += [(f"{path}.{key}" if path else key, child) for key, child in _children(value)]


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        named = [(printable(str(key)) if isinstance(key, str | int) else "?", child) for key, child in value.items()]
    else:
        items = value.parts if isinstance(value, InertObject) else value
        named = [(str(number), child) for number, child in enumerate(items)]
    return named[::-1]


class _InertUnpickler(pickle.Unpickler):
    """Builds plain data, inert objects and tensors."""

    def __init__(self, file: BinaryIO, modules: set[str] | None) -> None:
        super().__init__(file)
        self._modules = modules
        self._names: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        known = self._names.get((module, name))
        if known is None:
            known = self._names[module, name] = _stand_in(*modern(module, name))
            if len(self._names) > _MOST_NAMES:
                raise DamagedFileError(f"its pickle refers to more than {_MOST_NAMES} classes")
            if self._modules is not None and is_foreign(module):
                self._modules.add(printable(module))
        return known

    def persistent_load(self, identity: Any, /) -> InertStorage:
        if not isinstance(identity, tuple) or len(identity) < 3 or not isinstance(identity[2], str):
            raise DamagedFileError("its pickle refers to an object outside of it that is no storage")
        name = identity[1].name if isinstance(identity[1], _StandIn) else ""
        return InertStorage(identity[2], _STORAGE_TYPES.get(name, ""))


def _stand_in(module: str, name: str) -> Any:
    found = _StandIn("InertObject", (InertObject,), {"module": module, "name": name, "__slots__": ()})
    if not may_be_named(module, name):
        raise _unsafe("refers to", found.path)
    return _UNDERSTOOD.get(found.path, found)


def _check_arguments(arguments: tuple[Any, ...], *, iterates: bool) -> None:
    """Raise UnsafePickleError if a call runs code of its arguments: some make objects of a class that they are given.

    ``iterates``: whether the call iterates over them.
    """
    for each in arguments:
        if isinstance(each, _StandIn) and not may_be_made(each.module, each.name):
            raise _unsafe("passes on", each.path)
        if iterates and isinstance(each, InertObject):
            raise _unsafe("iterates over", type(each).path)


def _check_state(state: Any) -> None:
    """Raise UnsafePickleError if the new state of an object decides what the next opcode calls."""
    for part in state if isinstance(state, tuple) else (state,):
        for name in _HIDDEN if isinstance(part, dict) else ():
            if isinstance(part.get(name), _StandIn | InertObject):
                raise UnsafePickleError(f"its pickle replaces {name} of an object: do not load this file")


def _unsafe(does: str, path: str) -> UnsafePickleError:
    return UnsafePickleError(f"its pickle {does} {printable(path)}, which no checkpoint needs: do not load this file")


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> Any:
    dtype = dtype_of(rest[2]) if len(rest) > 2 else ""
    numbers = (offset, *shape, *stride)
    if not isinstance(storage, InertStorage) or not all(isinstance(each, int) and each >= 0 for each in numbers):
        raise DamagedFileError("its pickle describes a tensor that cannot be")
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else 0
    return InertTensor(storage, dtype or storage.dtype, offset, tuple(shape), span == math.prod(shape))


def _parameter(data: Any = None, *_: Any) -> Any:
    return data


def _rebuilt(function: Any, _: Any, arguments: Any, __: Any) -> Any:
    return function(*arguments)


def _attribute(owner: Any = None, name: Any = None, *_: Any) -> Any:
    """Return a stand-in for a function such as ``torch.relu``, which is pickled as an attribute of its class."""
    if not isinstance(owner, _StandIn) or owner.path != "torch._C._VariableFunctionsClass" or not isinstance(name, str):
        raise _unsafe("calls", "builtins.getattr")
    return _stand_in(owner.module, name)


def _bytes(text: str, _: Any = None) -> bytes:
    return text.encode("latin1")


_UNDERSTOOD: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": InertMapping,
    "collections.defaultdict": InertMapping,
    "torch.Size": InertSize,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuilt,
    "_codecs.encode": _bytes,
    "builtins.getattr": _attribute,
}
