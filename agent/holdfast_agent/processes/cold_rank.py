"""Starts ranks in a new interpreter, where a fork of the warm parent could not train.

Importing a module of the user's may run a backward pass or use a GPU. torch's autograd engine then has threads, or the
process has a CUDA context. Neither survives fork(): in a child the next backward pass, or the next use of the GPU,
raises an error, in every generation. A new interpreter has neither, but must import everything again.

    python -m holdfast_agent.processes.cold_rank DESCRIPTOR RUN -- COMMAND...

DESCRIPTOR is open on the request. COMMAND is an argument so that the rank has room to show it in ``ps``.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from holdfast_agent.processes.rank_program import become_rank
from holdfast_base.text import arguments_without_secrets
from holdfast_proto.v1 import warm_parent_pb2 as pb

ENGINE_THREAD = "pt_autograd"
"""Beginning of the names of the threads that the autograd engine has for devices, from its first backward pass on.

Nothing else shows that the engine has started: torch keeps its flag in C++ and sets it in the child only."""


def why_no_fork() -> str:
    """Return what this process has done that its forks cannot train after, such as ``used a GPU``; "" if nothing."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return "used a GPU"
    return "ran a backward pass" if any(name.startswith(ENGINE_THREAD) for name in thread_names()) else ""


def thread_names() -> list[str]:
    """Return the names of this process's threads. A new one has that of the thread that started it for a moment."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            names.append((thread / "comm").read_text())
        except OSError:  # it has just ended
            continue
    return names


def start_cold(request: pb.Fork, run: str) -> NoReturn:
    """Replace this forked child by a new interpreter that becomes the rank of ``request``."""
    descriptor = os.memfd_create("holdfast-request", flags=0)  # without the flag that closes it at exec
    os.write(descriptor, request.SerializeToString())
    os.lseek(descriptor, 0, os.SEEK_SET)
    # The warm parent ignores SIGINT. An ignored signal stays ignored after exec, and Python would keep it so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = [sys.executable, "-m", "holdfast_agent.processes.cold_rank"]
    # The command is in the request. Its words only make room for the title, and every user sees them until then.
    os.execv(sys.executable, [*program, str(descriptor), run, "--", *arguments_without_secrets(request.command)])


def main() -> None:
    """Become the rank whose request a descriptor holds."""
    with os.fdopen(int(sys.argv[1]), "rb") as stream:
        request = pb.Fork.FromString(stream.read())
    become_rank(request, sys.argv[2])


if __name__ == "__main__":
    main()
