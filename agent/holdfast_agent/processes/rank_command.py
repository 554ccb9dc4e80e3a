"""Decides whether a rank's command can be started on this machine, before a rank exists.

It looks only at what is certain: files, the PATH, and whether a module exists. It imports and runs nothing of the user.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from holdfast_agent.processes.rank_program import is_this_python
from holdfast_base.text import arguments_without_secrets

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
_SHELLS = ("sh", "bash", "zsh", "dash")
_WRAPPERS = ("env", "exec", "nohup", "nice", "numactl", "taskset", "time", "stdbuf", "setsid", "uv", "poetry", "conda")
"""Programs that run another one in their place."""
_FOR_THE_SHELL = frozenset("$`*?;&|<>")
_LONGEST_SHOWN = 60
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def launcher_problem(command: Sequence[str], starts_ranks: str = "holdfast run --ranks N") -> str:
    """Return one line if ``command`` starts ranks of its own, else "".

    ``starts_ranks``: the command of Holdfast, up to the --, that would start them.
    """
    launcher = _launcher(command)
    if not launcher:
        return ""
    shown = arguments_without_secrets(command)  # an agent logs the line
    rank = f"python {shlex.join(_script_and_arguments(shown)) or 'SCRIPT'}"
    return (
        f"{launcher} starts ranks, and Holdfast would start them itself: use "
        f"`holdfast observe -- {shlex.join(shown)}`, which only watches, or `{starts_ranks} -- {rank}`"
    )


def start_problem(command: Sequence[str], folder: Path) -> str:
    """Return one line if ``command`` cannot be started in ``folder`` on this machine, else "".

    If it starts Python, the script or module is checked too.
    """
    program = command[0]
    if not is_this_python(program):
        try:
            problem = _program_problem(program, folder)
        except OSError as error:  # the name is too long, or a folder in the path may not be searched
            problem = _one_token(program) or f"{_shown(program)} cannot be started: {error.strerror}: correct the path"
        if problem:
            return problem
    if not _PYTHON.fullmatch(Path(program).name):
        return ""
    kind, target = _python_target(command[1:])
    if kind == "script":
        return _script_problem(target, folder, is_ours=is_this_python(program))
    if kind == "module" and is_this_python(program):
        return _module_problem(target, folder)
    return ""


def torch_problem() -> str:
    """Return one line if this Python has no torch, with which the agent starts ranks, else ""."""
    if importlib.util.find_spec("torch") is not None:
        return ""
    return (
        f"ranks need torch, and {sys.executable} has none: install torch there, or the extra trainer of holdfast-torch"
    )


def _script_and_arguments(command: Sequence[str]) -> Sequence[str]:
    """Return the script of Python in ``command``, or in the command that a shell runs, and its arguments."""
    script = next((at for at, word in enumerate(command) if word.endswith(".py") and " " not in word), None)
    if script is not None:
        return command[script:]
    inner = _wrapped(Path(command[0]).name, command[1:])
    # Without a shell, these would mean something else.
    return () if not inner or any(set(word) & _FOR_THE_SHELL for word in inner) else _script_and_arguments(inner)


def _launcher(command: Sequence[str]) -> str:
    """Return the launcher that ``command`` starts, in its words; "" if it starts none."""
    name = Path(command[0]).name
    if name == "accelerate":
        return "accelerate launch" if "launch" in command[1:2] else ""
    if name in _LAUNCHERS:
        return name
    if _PYTHON.fullmatch(name):
        kind, target = _python_target(command[1:])
        is_module = kind == "module" and target in _LAUNCHER_MODULES
        is_script = kind == "script" and Path(target).name in _LAUNCHERS
        return f"{name} -m {target}" if is_module else Path(target).name if is_script else ""
    inner = _wrapped(name, command[1:])
    return _launcher(inner) if inner else ""


def _wrapped(name: str, arguments: Sequence[str]) -> Sequence[str]:
    """Return the command that a shell or another wrapper runs, as far as that is certain; nothing if it is not."""
    if name in _SHELLS and arguments[:1] and arguments[0] in ("-c", "-lc"):
        try:
            return shlex.split(" ".join(arguments[1:2]))
        except ValueError:
            return ()
    if name not in _WRAPPERS:
        return ()
    for at, word in enumerate(arguments):
        program = Path(word).name
        if program in _LAUNCHERS or program in _SHELLS or _PYTHON.fullmatch(program):
            return arguments[at:]
        if program.endswith((".py", ".sh")):
            return ()  # the program itself: what follows are its arguments
    return ()


def _python_target(arguments: Sequence[str]) -> tuple[str, str]:
    """Return ("script", path) or ("module", name) for the arguments of Python; ("", "") for anything else."""
    remaining = iter(arguments)
    for word in remaining:
        if word == "-m":
            return "module", next(remaining, "")
        if word in _OPTIONS_WITH_VALUE:
            next(remaining, "")
        elif not word.startswith("-"):
            return "script", word
        elif word == "-" or (not word.startswith("--") and ("c" in word or "m" in word)):
            return "", ""  # a program in the command line, or options that are written together
    return "", ""


def _program_problem(program: str, folder: Path) -> str:
    path = folder / program
    if "/" not in program:
        if shutil.which(program) is not None:
            return ""
        hint = "" if path.exists() else _one_token(program)
        return hint or f"{program} cannot be started: {_why_not_found(program, path)}"
    if path.is_dir():
        return f"{program} cannot be started: it is a directory: give the program in it"
    if not path.exists():
        return _one_token(program) or f"{program} cannot be started: no such file in {folder}: correct the path"
    if not os.access(path, os.X_OK):
        how = f"start it with `python {program}`" if program.endswith(".py") else f"use `chmod +x {program}`"
        return f"{program} cannot be started: it is not executable: {how}"
    return ""


def _one_token(program: str) -> str:
    """Return one line on a program that does not exist, if it looks like a whole command; else ""."""
    if " " not in program.strip():
        return ""
    return (
        f"{_shown(program)} cannot be started: it is one word, and there is no such program: "
        "leave out the quotes around the command, or correct the path"
    )


def _shown(program: str) -> str:
    """Return the program on one short line."""
    line = " ".join(program.split())
    return line if len(line) <= _LONGEST_SHOWN else f"{line[: _LONGEST_SHOWN - 3]}..."


def _why_not_found(program: str, path: Path) -> str:
    if program.startswith("-"):
        return f"it is an option: begin with a program, such as `python {program}`"
    if path.is_dir():
        return "it is a directory: give the program in it"
    if not path.is_file():
        return "no such program on the PATH: correct its name, or give its path"
    return f"it is not on the PATH: use `{'python ' if program.endswith('.py') else './'}{program}`"


def _script_problem(script: str, folder: Path, *, is_ours: bool) -> str:
    path = folder / script
    try:
        if path.is_dir():
            if (path / "__main__.py").exists():
                return ""
            return f"{script} cannot be started: it is a directory without __main__.py: give the script in it"
        if path.exists() and not path.is_file():
            return ""  # a pipe: to open it would wait for its writer
        with path.open("rb") as file:
            source = file.read() if is_ours and path.suffix == ".py" else b""
    except FileNotFoundError:
        return f"{script} cannot be started: no such file in {folder}: correct the path"
    except OSError as error:
        how = "make it readable" if isinstance(error, PermissionError) else "correct the path"
        return f"{_shown(script)} cannot be started: {error.strerror}: {how}"
    return _syntax_problem(script, source)


def _syntax_problem(script: str, source: bytes) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f" in line {error.lineno}" if error.lineno else ""
        return f"{script} cannot be started: it is not Python{place}: {error.msg}: correct it"
    except ValueError as error:  # before Python 3.12, null bytes
        return f"{script} cannot be started: it is not Python: {error}: correct it"
    return ""


def _module_problem(module: str, folder: Path) -> str:
    """Look for the top-level package only: to find what is in it, Python would import it."""
    package = module.partition(".")[0]
    if not package:
        return "-m cannot be started: no module name follows it: add one"
    try:
        is_found = PathFinder.find_spec(package, [str(folder)]) or importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a loaded module without a spec
        return ""
    return "" if is_found else f"-m {module} cannot be started: there is no module {package}: correct it or install it"
