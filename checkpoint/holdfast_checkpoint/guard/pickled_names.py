"""Tells which names in a pickle are plain data, and which would run code when it is loaded.

Of the standard library, torch and numpy, a list says what plain checkpoints need: that of torch for ``weights_only``
(torch/_weights_only_unpickler.py), classes of modules and optimizers, and values such as dates and paths. Nothing else
of them may be called. Classes of other packages are unknown: the guard names their modules.
"""

import re
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

_LISTED_PACKAGES = sys.stdlib_module_names | {"torch", "functorch", "numpy", "distutils", "imp", "pipes", "__builtin__"}
"""Packages of which only the names below may be called. Newer versions of Python lack some, and older ones load them.
"""
_NEVER_NAMED = frozenset(
    {"os", "posix", "nt", "subprocess", "pty", "sys", "shutil", "socket", "runpy", "importlib", "ctypes", "commands"}
    | {"antigravity", "idlelib"}  # an import alone does something
)
_CODE = frozenset({"eval", "exec", "execfile", "compile", "open", "__import__", "input", "breakpoint"})
_BUILTINS = frozenset({"builtins", "io", "_io"})

_CONTAINERS = {
    "builtins": "set frozenset list dict tuple bytearray bytes",
    "collections": "OrderedDict defaultdict Counter deque",
}
"""Classes that iterate over what they are called with."""
_BYTES = ("bytes", "bytearray")
_VALUES = {
    "builtins": "int float complex bool str slice range object",
    "_codecs": "encode",
    "_io": "BytesIO",
    "argparse": "Namespace",
    "copyreg": "_reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "itertools": "count",
    "logging": "getLogger",
    "pathlib": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    "random": "Random",
    "re": "_compile",
    "signal": "Signals",
    "types": "SimpleNamespace",
    "uuid": "UUID",
    "torch": "Size Tensor device Generator",
    "torch._C": "Generator",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch.serialization": "_get_layout",
    "torch.storage": "TypedStorage UntypedStorage",
    "torch.torch_version": "TorchVersion",
    "numpy": "ndarray dtype",
}


def _paths(names: dict[str, str]) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for module, listed in names.items() for name in listed.split())


_ITERATING = _paths(_CONTAINERS)
_PLAIN = _ITERATING | _paths(_VALUES)
_PLAIN_PATTERN = re.compile(
    r"""torch\.(float\d\w*|bfloat16|u?int\d+|bool|complex\d+|q(u?int)\w+|bits\w+|half|double|float|long|short|int)
    | torch\.(\w+\.)?[A-Z][A-Za-z]*(Storage|Tensor)
    | torch\._utils\._rebuild_\w+
    | torch\.jit\._pickle\.(build_\w+|restore_type_tag)
    | numpy\.(_?core\.multiarray\.(_reconstruct|scalar) | _?core\.numeric\._frombuffer)
    | numpy\.(float|u?int|complex)\d+ | numpy\.bool_? | numpy\.dtypes\.\w+DType
    | numpy\.random\.bit_generator\.(__pyx_unpickle_\w+ | [A-Z]\w+)
    | numpy\.random\._pickle\.__(randomstate|generator|bit_generator)_ctor
    | numpy\.random\._(mt19937\.MT19937|pcg64\.PCG64(DXSM)?|philox\.Philox|sfc64\.SFC64)""",
    re.VERBOSE,
)
_TORCH_CLASSES = re.compile(
    r"torch\.(nn\.(modules|parameter)|optim|ao\.(nn|quantization)"
    r"|distributed\.(checkpoint|tensor|_tensor|_shard|fsdp|device_mesh))(\.\w+)*"
)
"""Modules of torch whose classes are in whole models, in indexes, and in sharded state."""


def modern(module: str, name: str) -> tuple[str, str]:
    """Return the name that today's Python has for one of Python 2, as its unpickler does."""
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    return IMPORT_MAPPING.get(module, module), name


def may_be_named(module: str, name: str) -> bool:
    """Return whether a checkpoint may refer to a name at all: most functions are harmless until they are called."""
    package = module.partition(".")[0]
    return package not in _NEVER_NAMED and not (package in _BUILTINS and name in _CODE)


def is_foreign(module: str) -> bool:
    """Return whether a module is of another package than the standard library, torch and numpy."""
    return module.partition(".")[0] not in _LISTED_PACKAGES


def may_be_made(module: str, name: str) -> bool:
    """Return whether objects of a class may be created without a call of its ``__init__``."""
    *outer, last = name.split(".")
    if is_foreign(module):
        # Other lower-case parts are modules that this one has imported, such as "os" in "os.system".
        return all(_is_class(part) for part in outer)
    path = f"{module}.{name}"
    is_plain = path in _PLAIN or _PLAIN_PATTERN.fullmatch(path) is not None
    return not outer and (is_plain or (_is_class(last) and _TORCH_CLASSES.fullmatch(module) is not None))


def may_be_called(module: str, name: str, arguments: tuple[object, ...]) -> bool:
    """Return whether a checkpoint may call a class or function with these arguments."""
    if not may_be_made(module, name):
        return False
    if module == "builtins" and name in _BYTES and isinstance(next(iter(arguments), None), int):
        return False  # it would reserve so many bytes
    if is_foreign(module):  # an enum is called, and helpers of pickles are private functions: others are code
        return not name.rpartition(".")[2][:1].islower()
    if _TORCH_CLASSES.fullmatch(module) is None:
        return True
    return len(arguments) == 1 and isinstance(arguments[0], str | int)  # as that of an enum


def iterates(module: str, name: str) -> bool:
    """Return whether a call iterates over its arguments, which runs code of their classes."""
    return f"{module}.{name}" in _ITERATING


def _is_class(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()
