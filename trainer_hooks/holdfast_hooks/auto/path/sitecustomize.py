"""Runs at the start of every Python under ``--auto``: arms ranks, then runs the sitecustomize that is also installed.

It runs in every Python that a launcher starts, Python 2 among them. So it uses nothing of ours but one file by its
path, needs no new syntax, and keeps its own errors to itself. Those of the other sitecustomize are left to Python,
which reports them as ever.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would cost every process its import


def _arm():  # type: () -> None
    """Arm this process if it may become a rank."""
    if '"auto": true' not in os.environ.get("HOLDFAST_CONTEXT", ""):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    # By its path: the package around it imports gRPC, and most processes never need that.
    name = "holdfast_arming"
    spec = spec_from_file_location(name, os.path.join(os.path.dirname(_HERE), "arming.py"))  # noqa: PTH118, PTH120
    if spec is not None and spec.loader is not None:
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.arm()


def _run_the_other():  # type: () -> None
    """Run the sitecustomize that Python would have found without this folder."""
    folders = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]  # noqa: PTH100
    if sys.version_info[0] == 2:  # noqa: UP036 - a Python that is not ours
        _run_by_python_2(folders)
        return
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _run_by_python_2(folders):  # type: (list[str]) -> None
    import imp

    try:
        found = imp.find_module("sitecustomize", folders)
    except ImportError:
        return
    imp.load_module("sitecustomize", *found)  # type: ignore[arg-type] # as Python 2 has it


try:  # noqa: SIM105 - contextlib is not imported at every start
    _arm()
except Exception:  # noqa: BLE001 - no process may fail or speak because of this: most of them are no ranks
    pass
_run_the_other()
