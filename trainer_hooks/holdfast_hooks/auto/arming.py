"""Arms a process: if it makes a process group later, the hooks attach.

Most processes that this runs in are no ranks: launchers, loaders, compilers. So it imports only what every Python has
imported already, and nothing of ours or of torch. ``sitecustomize`` loads this file by its path, without its package.
Where torch.distributed is imported already, as in ranks that the warm parent forks, :func:`arm` wraps it right away.
"""

import functools
import os
import sys

TYPE_CHECKING = False  # as in typing, which would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

CONTEXT = "HOLDFAST_CONTEXT"
RANK_PROCESS = "HOLDFAST_AUTO_RANK"
"""Variable with the pid of a rank that has attached automatically. Its children inherit it, and are no ranks."""
GROUPS = "torch.distributed.distributed_c10d"
_SESSION = "holdfast_hooks.auto.automatic_session"
_INIT, _DESTROY = "init_process_group", "destroy_process_group"


def python_path(before: str) -> str:
    """Return a PYTHONPATH on which our ``sitecustomize`` comes first. ``before``: the present one; "" without one."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")  # noqa: PTH100, PTH118, PTH120 - as above
    others = [folder for folder in before.split(os.pathsep) if folder and folder != own]
    return os.pathsep.join([own, *others])


def arm() -> None:
    """Have the hooks attach in this process once it makes its process group, if its environment says so."""
    if '"auto": true' in os.environ.get(CONTEXT, "") and not is_child_of_rank():
        on_import(GROUPS, _wrap)


def is_child_of_rank() -> bool:
    """Return whether this process, or one that it descends from, is not the rank that has attached."""
    return os.environ.get(RANK_PROCESS, str(os.getpid())) != str(os.getpid())


def on_import(name: str, action: "Callable[[ModuleType], None]") -> None:
    """Call ``action`` with a module once it is imported, or now if it is."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Finds one module as the other finders do, and has an action follow its import."""

    def __init__(self, name: str, action: "Callable[[ModuleType], None]") -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the module's spec; None for every other module."""
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _follow(spec, self._action)
                return spec
        return None


def _follow(spec: "ModuleSpec", action: "Callable[[ModuleType], None]") -> None:
    """Have ``action`` follow the import of a module. The loader stays the same object: others may look at it."""
    loader: Any = spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: "ModuleType") -> None:
        del loader.exec_module
        execute(module)
        try:
            action(module)
        except Exception as error:  # noqa: BLE001 - an import of torch must not fail because of us
            say(f"cannot attach by itself: {error!r}")

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without attributes of its own: the module is imported, and not wrapped
        say(f"cannot attach by itself: {type(loader).__name__} imports {spec.name}")


def _wrap(groups: "ModuleType") -> None:
    """Wrap the two functions that make and end the default process group, wherever they are known."""
    init, destroy = groups.init_process_group, groups.destroy_process_group

    @functools.wraps(init)
    def init_process_group(*args: "Any", **kwargs: "Any") -> object:
        result = init(*args, **kwargs)
        _tell("began")
        return result

    @functools.wraps(destroy)
    def destroy_process_group(*args: "Any", **kwargs: "Any") -> object:
        group = args[0] if args else kwargs.get("group")
        if (group is None or group is groups.GroupMember.WORLD) and _SESSION in sys.modules:
            _tell("ends")
        return destroy(*args, **kwargs)

    # Modules that were imported before have the functions under their own names. Torch's package is one of them.
    for module in list(sys.modules.values()):
        for name, ours, theirs in ((_INIT, init_process_group, init), (_DESTROY, destroy_process_group, destroy)):
            if getattr(module, "__dict__", {}).get(name) is theirs:
                setattr(module, name, ours)


def _tell(what: str) -> None:
    """Tell the automatic attachment that the process group ``began``, or that it ``ends``."""
    if is_child_of_rank():  # a worker that was forked has the wrapped functions, too
        return
    try:
        import importlib

        getattr(importlib.import_module(_SESSION), what)()  # by its name, because it imports this module
    except Exception as error:  # noqa: BLE001 - the script must train on without us
        say(f"rank {os.environ.get('RANK', '0')} is not attached: {error!r}")


def say(line: str) -> None:
    """Print one line to stderr. A script whose stderr is closed continues."""
    try:
        print(f"holdfast: {line}", file=sys.stderr, flush=True)
    except Exception:  # noqa: BLE001
        return
