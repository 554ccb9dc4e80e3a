"""Reads pickles of torch without running anything of them.

A pickle names classes and functions, and tells Python to call them. Here no such name is ever imported. Each becomes an
:class:`InertObject` that only collects what it would have been called with. A few are understood: tensors, their
storages, sizes and mappings. Names that no checkpoint needs, such as ``os.system``, are refused with an error.
"""

import math
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from holdfast_checkpoint.guard.damage import DamagedFileError, printable

LARGEST_PICKLE_BYTES = 1 << 30
"""A larger pickle is refused: the guard must not fill the memory of a node that trains."""
_ROOM_BYTES, _BYTES_PER_BYTE = 256 << 20, 64
"""Memory that reading a pickle may take: this much, and so many times its own size."""
_MOST_NAMES = 4096
_MOST_OBJECTS = 20_000_000

_CODE = frozenset({"os", "posix", "nt", "subprocess", "pty", "sys", "shutil", "socket", "runpy", "importlib", "ctypes"})
_CALLS = frozenset({"eval", "exec", "execfile", "compile", "open", "__import__", "input", "breakpoint"})
_CALLED_IN = frozenset({"builtins", "__builtin__", "io", "_io"})
_STORAGE_TYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip


class InertObject:
    """Stands for an object of a class that is never imported."""

    __slots__ = ("parts",)
    parts: list[Any]
    """What it was called with, and what was added to it."""
    path: ClassVar[str] = ""
    """Module and name of the class or function."""

    def __new__(cls, *args: Any, **named: Any) -> "InertObject":
        """Keep the arguments."""
        made = object.__new__(cls)
        made.parts = [args, named] if named else [args]
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append({key: value} if isinstance(key, str) else value)

    def __call__(self, *args: Any) -> "InertObject":
        """Return another inert object: a pickle may call what an inert call has returned."""
        return InertObject(*args)

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

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass


class InertSize(tuple[Any, ...]):
    """Stands for a torch.Size."""

    def __new__(cls, value: Any = ()) -> "InertSize":
        """Take a tuple or a list."""
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


def load_inert(data: bytes) -> Any:
    """Return what a pickle describes. Raises DamagedFileError if it is cut off, too large, or names code."""
    if len(data) > LARGEST_PICKLE_BYTES:
        raise DamagedFileError(f"its pickle has {len(data)} bytes, and {LARGEST_PICKLE_BYTES} is the most that is read")
    try:
        with _bounded_memory(_ROOM_BYTES + _BYTES_PER_BYTE * len(data)):
            return _InertUnpickler(BytesIO(data)).load()
    except DamagedFileError:
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
    path = getattr(value, "path", "")
    return path.removeprefix("torch.") if isinstance(value, type) and path.startswith("torch.") else ""


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

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self._names: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        known = self._names.get((module, name))
        if known is None:
            known = self._names[module, name] = _stand_in(module, name)
            if len(self._names) > _MOST_NAMES:
                raise DamagedFileError(f"its pickle refers to more than {_MOST_NAMES} classes")
        return known

    def persistent_load(self, identity: Any, /) -> InertStorage:
        if not isinstance(identity, tuple) or len(identity) < 3 or not isinstance(identity[2], str):
            raise DamagedFileError("its pickle refers to an object outside of it that is no storage")
        name = getattr(identity[1], "path", "").rpartition(".")[2]
        return InertStorage(identity[2], _STORAGE_TYPES.get(name, ""))


def _stand_in(module: str, name: str) -> Any:
    package = module.partition(".")[0]
    if package in _CODE or (package in _CALLED_IN and name in _CALLS):
        raise DamagedFileError(
            f"its pickle refers to {printable(f'{module}.{name}')}, which no checkpoint needs: do not load this file"
        )
    path = f"{module}.{name}"
    known = _UNDERSTOOD.get(path)
    return known if known is not None else type("InertObject", (InertObject,), {"path": path, "__slots__": ()})


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> Any:
    dtype = dtype_of(rest[2]) if len(rest) > 2 else ""
    numbers = (offset, *shape, *stride)
    if not isinstance(storage, InertStorage) or not all(isinstance(each, int) and each >= 0 for each in numbers):
        raise DamagedFileError("its pickle describes a tensor that cannot be")
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else 0
    return InertTensor(storage, dtype or storage.dtype, offset, tuple(shape), span == math.prod(shape))


def _parameter(data: Any = None, *_: Any) -> Any:
    return data


_UNDERSTOOD: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": InertMapping,
    "collections.defaultdict": InertMapping,
    "torch.Size": InertSize,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
}
