"""Paths of all files of a local run."""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.files import make_directory, make_run_directory
from holdfast_cli.errors import SettingsError
from holdfast_cli.run_folder.scrape_targets import targets_of
from holdfast_cli.run_folder.sweep import RUNTIME_PREFIX
from holdfast_proto import run_files

_LONGEST_SOCKET_NAME = 40
_LONGEST_SOCKET_PATH = 107
"""Bytes in Linux' sun_path, without the closing zero."""


@dataclass(frozen=True)
class RunPaths:
    """Paths of one run: what stays in ``directory``, what goes with the run in ``runtime`` and ``memory``."""

    directory: Path
    runtime: Path
    memory: Path
    """Folder for snapshots, in memory."""
    node: str

    @property
    def logs(self) -> Path:
        """Folder of logs: one file for each component, and those of the ranks."""
        return run_files.logs(self.directory)

    @property
    def redis_data(self) -> Path:
        """Folder of the append-only file of Redis."""
        return self.directory / "redis"

    @property
    def targets(self) -> Path:
        """File of targets for Prometheus' file_sd_configs."""
        return targets_of(self.directory)

    @property
    def redis_socket(self) -> Path:
        """Socket of the run's own Redis."""
        return self.runtime / "redis.sock"

    @property
    def control(self) -> Path:
        """The daemon's control socket."""
        return self.runtime / "daemon.sock"

    @property
    def daemon_endpoint(self) -> Path:
        """Endpoint file of the daemon."""
        return run_files.daemon_endpoint(self.control)

    @property
    def agent_endpoint(self) -> Path:
        """Endpoint file of the agent."""
        return run_files.agent_endpoint(self.runtime, self.node)

    @property
    def guard_endpoint(self) -> Path:
        """Endpoint file of the guard."""
        return run_files.guard_endpoint(self.runtime)


def node_folder(run: str, node: str) -> str:
    """Return the name of the folder of one node of a run that several nodes observe. No run can have this name.

    Each node has its own, because ``--directory`` may be on a file system that the nodes share.
    """
    return f"{run}@{node}"


def prepare_directory(directory: Path, *, share: bool = False) -> Path:
    """Create a run's directory with its folders and return its absolute path. ``share``: let its group read it."""
    absolute = directory.absolute()
    try:
        make_run_directory(absolute, share=share)
        make_run_directory(run_files.logs(absolute))
    except OSError as error:
        raise _cannot_use(directory.parent, error) from None
    return absolute


def claim_dated_name(directory: Path, *, share: bool = False) -> str:
    """Return a name with the present date and time that no other run in ``directory`` has, and create its folder.

    Runs that start within one second get ``-2``, ``-3`` and so on. ``share``: let the folder's group read it. Raises
    SettingsError if no folder can be made.
    """
    dated = name = dated_name()
    number = 1
    try:
        make_directory(directory.absolute())
        while True:
            try:
                make_run_directory(directory.absolute() / name, share=share, exist_ok=False)
                return name
            except FileExistsError:
                number += 1
                name = f"{dated}-{number}"
    except OSError as error:
        raise _cannot_use(directory, error) from None


def dated_name() -> str:
    """Return a name with the present date and time. Another run may have it: see :func:`claim_dated_name`."""
    return time.strftime("run-%Y%m%d-%H%M%S")


def _cannot_use(directory: Path, error: OSError) -> SettingsError:
    problem = f"{error.filename}: {error.strerror}"
    return SettingsError(f"--directory {directory}: {problem}: name a folder that you can write to")


def empty_redis_data(paths: RunPaths) -> None:
    """Delete the data of the run's own Redis, and leave its folder with mode 0700."""
    shutil.rmtree(paths.redis_data, ignore_errors=True)
    paths.redis_data.mkdir(mode=0o700)


def set_aside_redis_data(paths: RunPaths) -> str:
    """Rename the data that the run's own Redis cannot load, so that it begins empty; return a line about it.

    Daemon and agents write again what was in it. Raises OSError.
    """
    number = 1
    while (aside := paths.redis_data.with_name(f"redis-damaged-{number}")).exists():
        number += 1
    paths.redis_data.rename(aside)
    paths.redis_data.mkdir(mode=0o700)
    return f"its data could not be loaded and is set aside in {aside}: it begins empty, nothing to do"


def make_runtime_directory() -> Path:
    """Create a directory for sockets (mode 0700) whose path is short enough for them."""
    return Path(tempfile.mkdtemp(prefix=RUNTIME_PREFIX, dir=_place_for_sockets()))


def shared_runtime_directory(words: Iterable[str]) -> Path:
    """Return the path of a directory for sockets that all processes of this user find by the same words."""
    digest = hashlib.blake2b("\0".join(words).encode(), digest_size=6).hexdigest()
    return _place_for_sockets() / f"{RUNTIME_PREFIX}{os.geteuid()}-{digest}"


def _place_for_sockets() -> Path:
    preferred = os.environ.get("XDG_RUNTIME_DIR", "")
    for parent in (preferred, tempfile.gettempdir(), "/tmp"):
        longest = len(os.fsencode(parent)) + len(RUNTIME_PREFIX) + 10 + _LONGEST_SOCKET_NAME
        if parent and longest <= _LONGEST_SOCKET_PATH and os.access(parent, os.W_OK | os.X_OK):
            return Path(parent)
    raise SettingsError("no place for sockets: set XDG_RUNTIME_DIR or TMPDIR to a short path that you can write to")
