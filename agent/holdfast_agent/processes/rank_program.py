"""Turns a forked child of the warm parent into a rank, which runs the user's program."""

import importlib
import os
import runpy
import shutil
import sys
from pathlib import Path

from holdfast_base.files import share_file
from holdfast_base.processes import name_process, title_process
from holdfast_base.text import arguments_without_secrets
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1 import warm_parent_pb2 as pb


def become_rank(request: pb.Fork, run: str) -> None:
    """Turn this forked child into a rank: give it its log and its environment, and run its program.

    Modules, their state and the environment are inherited from the warm parent. Stdin, stdout and stderr are replaced.
    """
    log = os.open(request.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    share_file(Path(request.log_path), log)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    os.environ.update(request.environment)
    name_process(f"rank {request.rank}")
    # The user's own command stays in it, without secrets: people look for `train.py` in ps.
    title_process(f"holdfast: rank {request.rank} of {run}: {' '.join(arguments_without_secrets(request.command))}")
    context = RankContext.from_environment(rank=request.rank)
    if context is not None and context.auto:
        _attach_automatically()
    run_program(list(request.command))


def _attach_automatically() -> None:
    """Have the hooks attach in this process, and in the Python that a command of another kind starts."""
    try:
        # By name, as the warm parent imports it: agents do without the hooks.
        arming = importlib.import_module("holdfast_hooks.auto.arming")
        os.environ["PYTHONPATH"] = arming.python_path(os.environ.get("PYTHONPATH", ""))
        arming.arm()
    except Exception as error:  # noqa: BLE001 - a rank that cannot be watched can train
        print(f"holdfast: cannot attach by itself: {error!r}", file=sys.stderr, flush=True)


def run_program(command: list[str]) -> None:
    """Run ``python -m module ...`` and ``python script.py ...`` in this process, anything else by exec."""
    program, *arguments = command
    if not is_this_python(program) or not arguments or (arguments[0].startswith("-") and arguments[0] != "-m"):
        try:
            os.execvp(sys.executable if is_this_python(program) else program, command)
        except OSError as error:  # it does not name the program
            raise OSError(error.errno, error.strerror, program) from None
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def is_this_python(program: str) -> bool:
    """Return whether ``program`` is the interpreter of this process."""
    # As with torchrun, a bare `python` means our interpreter, even if its virtual environment is not activated.
    if program in ("python", "python3"):
        return True
    found = shutil.which(program)
    # Not resolved: two virtual environments may link to the same interpreter and differ in packages.
    return found is not None and Path(found).parent == Path(sys.executable).parent and "python" in Path(found).name
