"""Ranks that srun or mpirun start, each by a ``holdfast observe --per-rank`` of its own.

The process becomes the rank: it replaces its program, and keeps its pid. So signals, exit code and output are those of
the rank. The first process on a node also starts the observation of that node, as a process of its own. A lock decides
which one is first. Each process leaves its pid in a folder before it becomes the rank. The observation ends when all of
these processes are gone.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.files import make_private_directory
from holdfast_base.run_processes import ProcessIdentity, identify
from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.automatic import rank_environment
from holdfast_cli.local_run.launcher_watch import observed_node
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.paths import node_folder, shared_runtime_directory

_LAUNCHES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PBS_JOBID", "PALS_APID")
"""Variables that tell one launch on a node from the next."""
_LOCK = "observer.lock"
_STDIN, _STDOUT, _STDERR = 0, 1, 2


@dataclass(frozen=True)
class NodeRanks:
    """The processes of one launch on this node."""

    runtime: Path
    """Folder for the sockets of the observation."""
    folder: Path
    """Folder with a file for each process: its pid is the name, its start time the text."""

    @classmethod
    def of(cls, run: str, node: str, environment: Mapping[str, str]) -> "NodeRanks":
        """Return those of this process's launch. Raises SettingsError if there is no place for sockets."""
        runtime = shared_runtime_directory([run, node, *(environment.get(name, "") for name in _LAUNCHES)])
        return cls(runtime, runtime.with_name(f"{runtime.name}.ranks"))

    def enter(self) -> int | None:
        """Note this process. Return the descriptor of the lock if it is the first one on the node, else None."""
        try:
            make_private_directory(self.folder, "TMPDIR")
        except OSError as error:
            raise SettingsError(str(error)) from None
        own = identify(os.getpid())
        assert own is not None, "/proc must be mounted"
        hidden = self.folder / f".{own.pid}"
        hidden.write_text(str(own.start_ticks))
        hidden.rename(self.folder / str(own.pid))
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def any_alive(self) -> bool:
        """Return whether a process that has entered is alive."""
        entered = (path for path in self.folder.iterdir() if path.name.isdecimal())
        return any(ProcessIdentity(int(path.name), int(path.read_text())).is_alive() for path in entered)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def become_rank(
    command: Sequence[str], node: str, options: LocalRunOptions, observe: Callable[[NodeRanks], None]
) -> None:
    """Replace this process by the rank. The first one on the node has a child that calls ``observe``.

    The rank never waits for the observation: the hooks connect as soon as its agent serves. Raises SettingsError
    if the command cannot be run.
    """
    ranks = NodeRanks.of(options.run, node, os.environ)
    lock = ranks.enter()
    if lock is not None:
        _detach(lambda: observe(ranks))
        os.close(lock)  # the child holds it as long as it observes
    folder = options.directory.absolute() / node_folder(options.run, node)
    context = observed_node(options, node, folder, ranks.runtime)
    try:
        os.execvpe(command[0], list(command), {**os.environ, **rank_environment(context)})
    except OSError as error:
        raise SettingsError(f"{command[0]} cannot be run: {error.strerror}") from None


def _detach(work: Callable[[], None]) -> None:
    """Call ``work`` in a process that is no child of this one: the rank must not find a child that it has not made."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    try:
        os.setsid()  # Ctrl-C in the terminal is for the ranks
        if os.fork() == 0:
            _leave_terminal()
            work()
        code = 0
    finally:
        os._exit(code)


def _leave_terminal() -> None:
    """Read nothing, and print to stderr only: the standard output belongs to the rank."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.dup2(_STDERR, _STDOUT)
    os.close(nothing)
